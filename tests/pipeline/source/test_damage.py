"""Damaged segments: reported with file and offset, skipped if permissive, and listed."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.source.shelf import consumed, fill, rows_of, some_messages
from tests.stores import field_position, flip, log_file, overwrite, records, truncate

from firetrail.errors import StoreDamagedError
from firetrail.format.files.index import entry_at
from firetrail.format.record import Record
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.source.damage import DDL, SCHEMA, plan_damage, read_damage
from firetrail.pipeline.source.plan import log_splits
from firetrail.pipeline.source.source_options import parse_options


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    fill(path, some_messages(120))
    return path


@pytest.fixture
def victim(store: Path) -> Record:
    """A message in the second file of the log."""
    return records(store)[70]


def damage_of(path: Path, partitions: int = 1) -> list[dict[str, Any]]:
    options = {"path": str(path), "view": "damage", "minPartitions": str(partitions)}
    return [
        row
        for split in plan_damage(parse_options(options))
        for batch in read_damage(split)
        for row in batch.to_pylist()
    ]


def break_header(store: Path, victim: Record) -> None:
    path, at = log_file(store, victim.physical_offset)
    overwrite(path, at + 4, b"\0\0\0\1")


def break_body(store: Path, victim: Record) -> None:
    path, at = log_file(store, victim.physical_offset)
    base = victim.physical_offset - at
    flip(path, field_position(path.read_bytes(), base, at, "body"))


def without(rows: list[dict[str, Any]], victim: Record) -> list[dict[str, Any]]:
    return [row for row in rows if row["physical_offset"] != victim.physical_offset]


def test_a_sound_store_has_no_damage(store: Path) -> None:
    assert damage_of(store) == []
    assert damage_of(store, 7) == []


def test_the_table_has_the_columns_that_it_says() -> None:
    assert [part.split()[0] for part in DDL.split(", ")] == SCHEMA.names


@pytest.mark.parametrize("ratio", [0, 10**9])
@pytest.mark.parametrize("view", ["queue", "log"])
@pytest.mark.parametrize(
    ("breaks", "kind"), [(break_header, "record-magic"), (break_body, "body-crc")]
)
def test_a_damaged_message_is_skipped_and_listed(
    store: Path,
    victim: Record,
    monkeypatch: pytest.MonkeyPatch,
    view: str,
    ratio: int,
    breaks: Any,
    kind: str,
) -> None:
    monkeypatch.setattr(log_splits, "SCAN_RATIO", ratio)
    before = rows_of(store, view=view)
    breaks(store, victim)
    path, at = log_file(store, victim.physical_offset)
    with pytest.raises(StoreDamagedError) as caught:
        rows_of(store, view=view)
    assert caught.value.file == f"{store}/commitlog/{path.name}"
    assert (caught.value.offset, caught.value.physical_offset) == (at, victim.physical_offset)
    assert "mode=permissive" in str(caught.value)
    how = {"permissive": True}
    assert rows_of(store, view=view, how=how, mode="permissive") == without(before, victim)
    for partitions in (1, 9):
        (found,) = damage_of(store, partitions)
        assert found["kind"] == kind
        assert found["file"] == f"commitlog/{path.name}"
        assert (found["offset"], found["physical_offset"]) == (at, victim.physical_offset)
        assert found["skipped"] == victim.size
        assert found["resume_offset"] == victim.physical_offset + victim.size


def test_a_missing_end_of_the_log_is_listed(store: Path) -> None:
    """The queues have units of messages that the log has lost."""
    last = sorted((store / "commitlog").iterdir())[-1]
    lost = records(store)[-1]
    truncate(last, lost.physical_offset - int(last.name) + 10)
    with pytest.raises(StoreDamagedError, match="firetrail fsck"):
        rows_of(store)
    rows = rows_of(store, how={"permissive": True}, mode="permissive")
    assert lost.physical_offset not in {row["physical_offset"] for row in rows}
    kinds = {row["kind"] for row in damage_of(store)}
    assert kinds & {"log-end", "record-cut"}


def test_a_missing_file_is_damage_or_skipped(store: Path) -> None:
    """A file in the middle is missing, which retention cannot have deleted."""
    files = sorted((store / "commitlog").iterdir())
    before = rows_of(store, view="log")
    files[1].unlink()
    for view in ("queue", "log"):
        with pytest.raises(StoreDamagedError, match=files[1].name):
            rows_of(store, view=view)
    gone = range(int(files[1].name), int(files[2].name))
    rows = rows_of(store, view="log", how={"permissive": True}, mode="permissive")
    assert rows == [row for row in before if row["physical_offset"] not in gone]
    (found,) = damage_of(store)
    assert (found["kind"], found["skipped"]) == ("file-missing", len(gone))


def test_a_queue_that_points_to_nothing_is_damage(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store / "consumequeue" / "usual" / "0" / f"{0:020d}"
    flip(queue, 5 * 20 + 7)
    for ratio in (0, 10**9):
        monkeypatch.setattr(log_splits, "SCAN_RATIO", ratio)
        with pytest.raises(StoreDamagedError):
            rows_of(store)
        rows = rows_of(store, how={"permissive": True}, mode="permissive")
        assert ("usual", 0, 5) not in {
            (row["topic"], row["queue_id"], row["queue_offset"]) for row in rows
        }
        assert len(rows) == len(consumed_before(store)) - 1


def consumed_before(store: Path) -> list[dict[str, Any]]:
    """Return what consumers got before a unit was damaged."""
    flip(store / "consumequeue" / "usual" / "0" / f"{0:020d}", 5 * 20 + 7)
    rows = consumed(store)
    flip(store / "consumequeue" / "usual" / "0" / f"{0:020d}", 5 * 20 + 7)
    return rows


def test_queue_and_index_files_are_listed(store: Path) -> None:
    queue = sorted((store / "consumequeue" / "rare" / "0").iterdir())[0]
    truncate(queue, 33)
    index = sorted((store / "index").iterdir())[-1]
    index.write_bytes(b"\xff" * index.stat().st_size)
    found = damage_of(store)
    assert {row["file"] for row in found} == {"consumequeue/rare/0", f"index/{index.name}"}
    assert all(row["skipped"] is None for row in found)


def test_a_lookup_notices_entries_of_zeros(tmp_path: Path) -> None:
    fill(tmp_path, some_messages(20))
    (index,) = (tmp_path / "index").iterdir()
    options = {"path": str(tmp_path), "subscribe": "usual", "key": "k7"}
    assert plan_batch(parse_options(options)).splits
    overwrite(index, entry_at(16, 1), bytes(20 * 40))
    with pytest.raises(StoreDamagedError, match=r"points to entry .* rebuild the index"):
        plan_batch(parse_options(options))
    plan_batch(parse_options(options | {"mode": "PERMISSIVE"}))
