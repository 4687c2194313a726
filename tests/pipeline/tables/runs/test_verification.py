"""The check of a table against its sources: it finds what is missing, repeated or too much."""

import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline.tables.test_kills import killed_before
from tests.pipeline.tables.topics import numbered, put, table

from firetrail import Message, Store
from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.tables.runs.verification import verify_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


KEYED: Any = {"upsert": "id", "buckets": 2}
HISTORY: Any = {**KEYED, "history": True}
MODES = pytest.mark.parametrize("options", [{}, KEYED, HISTORY])


@MODES
def test_a_correct_table(root: Path, to: Path, options: Any) -> None:
    put(root, *numbered(range(10)), b"{broken")
    table(root, to, **options)
    put(root, *numbered(range(8, 12)))
    table(root, to, **options)
    put(root, {"id": 99})  # not read yet
    found = verify_table(root, to)
    assert found.ok
    assert (found.messages, found.rows, found.rejected) == (15, 12 if options == KEYED else 14, 1)
    assert found.unreadable == 0


@MODES
def test_rows_that_were_deleted_or_added_by_others(root: Path, to: Path, options: Any) -> None:
    put(root, *numbered(range(6)))
    table(root, to, **options)
    delta = DeltaTable(str(to))
    delta.delete("id = 3")
    found = verify_table(root, to)
    assert (found.ok, found.missing, found.repeated, found.unexpected) == (False, 1, 0, 0)
    assert len(found.examples) == 1
    assert found.examples[0].startswith("missing: queue 1 of data, offset 1")
    write_deltalake(str(to), _first_row(to), mode="append")
    found = verify_table(root, to)
    assert (found.missing, found.repeated, found.unexpected) == (1, 1, 0)


def _first_row(to: Path) -> pa.Table:
    return _rows(str(to), "order by id limit 1")


def _rows(place: str, more: str = "") -> pa.Table:
    query = QueryBuilder().register("t", DeltaTable(place))
    return pa.table(query.execute(f"select * from t {more}").read_all())


def test_an_older_version_of_a_row(root: Path, to: Path) -> None:
    put(root, {"id": 1, "v": 1}, {"id": 1, "v": 2}, queues=1)
    table(root, to, upsert="id")
    DeltaTable(str(to)).update({"_offset": "0"})
    found = verify_table(root, to)
    assert (found.missing, found.unexpected) == (1, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"_valid_to": "_valid_to + interval '1 second'"},
        {"_valid_to": "null"},
        {"_is_current": "true"},
        {"_valid_from": "_valid_from - interval '1 second'"},
        {"_offset": "2"},
    ],
)
def test_a_row_with_another_validity(root: Path, to: Path, change: dict[str, str]) -> None:
    put(root, *({"id": 1, "v": number} for number in range(3)), queues=1)
    table(root, to, **HISTORY)
    DeltaTable(str(to)).update(change, predicate="v = 0")
    found = verify_table(root, to)
    assert (found.ok, found.missing, found.unexpected) == (False, 1, 1)
    missing, unexpected = found.examples
    assert missing.startswith("missing: queue 0 of data, offset 0, valid from 20")
    assert unexpected.startswith("unexpected: queue 0 of data, offset ")


def test_an_archive_as_the_source(
    spark: SparkSession, root: Path, to: Path, tmp_path: Path
) -> None:
    put(root, *numbered(range(6)))
    archive(spark, root, tmp_path / "archive")
    table(root, to)
    assert verify_table(tmp_path / "archive", to)[1:6] == (6, 6, 0, 0, 0)
    put(root, *numbered(range(6, 8)))
    table(root, to)
    found = verify_table(tmp_path / "archive", to)
    assert (found.ok, found.messages, found.unreadable) == (True, 6, 2)
    assert verify_table([f"data={tmp_path / 'archive'}", f"data={root}"], to).messages == 8


def test_rejected_messages_that_were_deleted_or_added_by_others(root: Path, to: Path) -> None:
    put(root, {"id": 1}, b"{", b"}", {"id": 2}, queues=1)
    table(root, to)
    rejected = DeltaTable(f"{to}__rejected")
    rejected.delete("_offset = 1")
    found = verify_table(root, to)
    assert found[4:8] == (0, 1, 0, 0)
    assert found.examples == ("missing: queue 0 of data, offset 1",)
    rows = _rows(rejected.table_uri)
    write_deltalake(rejected.table_uri, pa.concat_tables([rows, _at(rows, 0)]), mode="append")
    found = verify_table(root, to)
    assert found[4:8] == (0, 1, 1, 1)
    assert found.examples[1:] == (
        "repeated: queue 0 of data, offset 2",
        "unexpected: queue 0 of data, offset 0",
    )


def _at(rows: pa.Table, offset: int | None) -> pa.Table:
    """Return the first row, at another offset."""
    return _with(rows.slice(0, 1), "_offset", offset)


def _with(rows: pa.Table, name: str, value: Any) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, name, pa.array([value] * len(rows), rows.schema.field(name).type))


@MODES
def test_rows_at_places_without_messages(root: Path, to: Path, options: Any) -> None:
    put(root, *numbered(range(4)))
    table(root, to, **options)
    put(root, {"id": 4})  # not read yet
    row = _first_row(to)
    foreign = [_at(row, 777), _at(row, 2), _at(row, None), _with(row, "_broker", "other")]
    write_deltalake(str(to), pa.concat_tables(foreign), mode="append")
    found = verify_table(root, to)
    assert (found.ok, found.rows, found.unreadable) == (False, 8, 0)
    assert (found.missing, found.repeated, found.unexpected) == (0, 0, 4)
    assert found.examples == (
        "unexpected: queue 0 of data, offset None",
        "unexpected: queue 0 of data, offset 2",
        "unexpected: queue 0 of data, offset 777",
        "unexpected: queue 0 of other, offset 0",
    )


def test_rows_of_messages_that_the_sources_no_longer_have(
    spark: SparkSession, root: Path, to: Path, tmp_path: Path
) -> None:
    put(root, *numbered(range(2)), queues=1)
    archive(spark, root, tmp_path / "archive")
    put(root, {"id": 2}, b"{", queues=1)
    table(root, to)
    found = verify_table(f"data={tmp_path / 'archive'}", to)
    assert (found.ok, found.unreadable) == (True, 2)
    DeltaTable(str(to)).delete("id = 2")
    row = _first_row(to)
    write_deltalake(str(to), _with(row, "_queue", 1), mode="append")
    found = verify_table(f"data={tmp_path / 'archive'}", to)
    assert (found.unreadable, found.unexpected) == (2, 1)
    assert found.examples == ("unexpected: queue 1 of data, offset 0",)
    write_deltalake(str(to), _at(row, 2), mode="append")
    write_deltalake(str(to), _at(row, 4), mode="append")
    assert verify_table(f"data={tmp_path / 'archive'}", to).unexpected == 2


def _event(kind: str, *rows: Any, old: Any = None) -> bytes:
    event = {"type": kind, "database": "shop", "table": "o", "isDdl": False, "es": 1, "sql": ""}
    event |= {"pkNames": ["id"], "mysqlType": {"id": "bigint", "v": "int"}}
    return json.dumps(event | {"data": rows, "old": old}).encode()


CHANGED_KEY = _event("UPDATE", {"id": "2", "v": "1"}, old=[{"id": "1"}])
NULL_KEY = _event("INSERT", {"id": "1", "v": "1"}, {"id": None, "v": "2"}, {"id": None, "v": "3"})


@pytest.mark.parametrize(
    ("bodies", "options", "rows", "rejected"),
    [
        ([CHANGED_KEY], {}, 1, 1),
        ([CHANGED_KEY], {"upsert": "id"}, 1, 0),
        ([NULL_KEY], {}, 3, 0),
        ([NULL_KEY], {"upsert": "id"}, 1, 2),
        ([_event("DELETE", {"id": "1", "v": "1"}, {"id": "2", "v": "1"}), CHANGED_KEY], {}, 1, 3),
    ],
)
def test_messages_of_which_some_rows_are_rejected(
    root: Path, to: Path, bodies: list[bytes], options: Any, rows: int, rejected: int
) -> None:
    put(root, *bodies, queues=1)
    table(root, to, decoder="canal", **options)
    found = verify_table(root, to)
    assert found.ok, found
    assert (found.rows, found.rejected) == (rows, rejected)
    for place, number in ((to, rows), (to.with_name("orders__rejected"), rejected)):
        if number:
            DeltaTable(str(place)).delete(f"_offset = {len(bodies) - 1}")
            found = verify_table(root, to)
            assert (found.missing, found.repeated, found.unexpected) == (1, 0, 0)


def test_messages_that_would_fit_now(root: Path, to: Path) -> None:
    put(root, {"id": 1, "v": 1}, {"id": 2, "v": 1000}, queues=1)
    table(root, to, schema="id bigint, v decimal(3,0)", upsert="id")
    put(root, {"id": 3, "v": 1}, queues=1)
    assert table(root, to, schema="v decimal(9,0)").total_rejected == 1
    assert verify_table(root, to).ok
    DeltaTable(f"{to}__rejected").delete()
    assert verify_table(root, to).missing == 1


@pytest.mark.parametrize(
    ("kind", "value", "own", "others"),
    [
        ("bigint", 5, ["5", "5.0", "+5", "05", "5e0"], ["5.5", "x", ""]),
        ("decimal(9,2)", 5, ["5", "5.00", "+5", "05", "5e0"], ["5.125", "x", ""]),
        ("string", "5", ["5"], [""]),
        ("timestamp", "2026-03-01 08:00", ["2026-03-01T08:00", "2026-03-01T00:00Z"], ["5", ""]),
    ],
)
def test_deletes_by_keys_of_every_form(
    root: Path, to: Path, kind: str, value: Any, own: list[str], others: list[str]
) -> None:
    with Store.open(root, small_config()) as store:
        for text in [*others, *own]:
            store.put(Message("orders", json.dumps({"id": value}).encode()))
            store.put(Message("orders", b"", keys=[text] if text else []))
    options = {"timeZone": "Asia/Shanghai"}
    done = table(root, to, upsert="id", schema=f"id {kind}", decoder_options=options)
    assert (done.total_rows, done.total_rejected) == (0, len(others))
    found = verify_table(root, to)
    assert found.ok, found


def test_messages_that_would_change_the_type_of_the_key(root: Path, to: Path) -> None:
    large = (1 << 53) + 1  # no double has it
    put(root, {"id": large}, {"id": 2.5}, {"id": 3, "n": 1}, {"id": 4.5, "new": 1}, queues=1)
    assert table(root, to, upsert="id", schema="id bigint").total_rejected == 2
    found = verify_table(root, to)
    assert found.ok, found
    DeltaTable(f"{to}__rejected").delete("_offset = 3")
    assert verify_table(root, to).missing == 1


def test_a_run_that_was_killed_has_to_be_completed(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, *numbered(range(3)))
    killed = 0
    for change in itertools.count():
        to = to.with_name(f"orders{change}")
        with killed_before(change, monkeypatch) as done:
            table(root, to)
        if len(done) < change:
            break
        with suppress(LakeError):
            assert verify_table(root, to).ok
            continue
        table(root, to)
        assert verify_table(root, to).ok
        killed += 1
    assert killed > 3
    with pytest.raises(LakeError, match=r"orders\d+: a run was killed before .* run the job once"):
        (to / "_firetrail/pending.json").write_bytes(_pending(to))
        verify_table(root, to)


def _pending(to: Path) -> bytes:
    manifest = json.loads((to / "_firetrail/manifest.json").read_bytes())
    return json.dumps({"manifest": manifest | {"sequence": 9}}).encode()


def test_what_cannot_be_verified(root: Path, to: Path) -> None:
    put(root, {"id": 1})
    with pytest.raises(LakeError, match="has no table"):
        verify_table(root, to)
    table(root, to, message_columns=False)
    with pytest.raises(ConfigError, match="rows cannot be compared"):
        verify_table(root, to)
