"""``firetrail info``: the facts that it prints about a store."""

from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.stores import CRASHED, GOLDEN, NAMES, copy_of, flip, records, truncate

from firetrail.cli.output import human_size, human_time, shortened, table

KEYS = {
    *("store", "state", "owner", "tail", "log", "topics", "index", "checkpoint", "watermark"),
    *("timer", "foreign", "problems"),
}
LOG_KEYS = "file_size min_offset max_offset bytes first_store_time last_store_time files"
QUEUE_KEYS = (
    "queue_id readable messages min_offset max_offset bytes first_store_time last_store_time"
)
INDEX_KEYS = (
    "file size slots slots_used entries entries_max begin_time end_time begin_offset end_offset"
)
CHECKPOINT_KEYS = (
    "physic_timestamp logics_timestamp index_timestamp master_flushed_offset confirm_offset"
    " logics_offset"
)
TABLES = {
    "Log files": "FILE OFFSET WRITTEN FULL FIRST STORED",
    "Queues": "TOPIC QUEUE MESSAGES MIN MAX FIRST STORED LAST STORED",
    "Index files": "FILE ENTRIES FULL OFFSETS FIRST STORED LAST STORED",
}


@pytest.mark.parametrize("name", NAMES)
def test_facts_agree_with_the_records_of_java_stores(name: str, firetrail: Firetrail) -> None:
    result = firetrail("info", GOLDEN / name, "--json")
    expected = records(GOLDEN / name)
    assert result.code == 0
    facts = result.json
    assert set(facts) == KEYS
    assert facts["state"] == ("crashed" if name in CRASHED else "closed")
    log = facts["log"]
    assert (log["min_offset"], log["max_offset"]) == (
        expected[0].physical_offset,
        expected[-1].physical_offset + expected[-1].size,
    )
    assert log["first_store_time"] == expected[0].store_time
    assert log["last_store_time"] == expected[-1].store_time
    (t1,) = (topic for topic in facts["topics"] if topic["topic"] == "T1")
    assert t1["messages"] == sum(record.topic == "T1" for record in expected)
    assert sum(file["entries"] for file in facts["index"]) > 0
    assert facts["problems"] == []


def test_the_summary_describes_state_and_log(firetrail: Firetrail) -> None:
    result = firetrail("info", GOLDEN / "v4-rebuilt")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[1] == "State       closed"
    assert lines[2] == (
        "Log         26.8 KiB in 4 files of 8.0 KiB, physical offsets 16384 to 43801"
    )
    (queue,) = (line for line in lines if line.startswith("T1 ") and line.split()[1] == "1")
    assert queue.split()[2:5] == ["77", "48", "125"]
    assert "\033" not in result.out


def test_tables_and_objects_have_their_documented_columns_and_keys(firetrail: Firetrail) -> None:
    """Scripts rely on them. Put a change into the change log."""
    lines = firetrail("info", GOLDEN / "v4-clean").out.splitlines()
    titles = [line.partition("  ")[0] for line in lines[: lines.index("")]]
    assert titles == ["Store", "State", "Log", "Stored", "Messages", "Checkpoint"]
    heads = {lines[n + 1]: lines[n + 2] for n, line in enumerate(lines) if not line}
    assert {title: " ".join(head.split()) for title, head in heads.items()} == TABLES
    facts = firetrail("info", GOLDEN / "v4-clean", "--json").json
    (topic, *_) = facts["topics"]
    for found, keys in [
        (facts, " ".join(KEYS)),
        (facts["log"], LOG_KEYS),
        (facts["log"]["files"][0], "file first_offset size written first_store_time"),
        (topic, "topic messages queues"),
        (topic["queues"][0], QUEUE_KEYS),
        (facts["index"][0], INDEX_KEYS),
        (facts["checkpoint"], CHECKPOINT_KEYS),
    ]:
        assert set(found) == set(keys.split())


def test_what_does_not_fit_is_shown(tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of("v4-rolled", tmp_path)
    (root / "commitlog" / f"{8192:020}").unlink()
    truncate(root / "consumequeue" / "T1" / "0" / ("0" * 20), 1990)
    flip(min((root / "index").iterdir()), 0, 7)
    result = firetrail("info", root)
    assert result.code == 1
    for kind in ("file-missing", "file-size", "index-file"):
        assert f": {kind}: " in result.out
    assert "damaged" in result.out
    kinds = [problem["kind"] for problem in firetrail("info", root, "--json").json["problems"]]
    assert kinds == ["file-missing", "file-size", "index-file"]


def test_an_empty_store_has_no_topics_and_no_files(tmp_path: Path, firetrail: Firetrail) -> None:
    (tmp_path / "commitlog").mkdir()
    assert firetrail("info", tmp_path).code == 0
    facts = firetrail("info", tmp_path, "--json").json
    assert (facts["topics"], facts["log"]["files"]) == ([], [])


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_are_shown_in_binary_units(size: int, text: str) -> None:
    assert human_size(size) == text


def test_times_are_shown_in_utc() -> None:
    assert human_time(1794725936352) == "2026-11-15 06:58:56.352Z"
    assert human_time(0) == human_time(None) == human_time(-5) == "-"
    assert human_time(1 << 62) == f"{1 << 62} ms"


def test_columns_of_tables_are_aligned() -> None:
    assert table(("NAME", "N>"), [("a", 1), ("long", 100)]) == [
        "NAME    N",
        "a       1",
        "long  100",
    ]
    assert len(shortened("x" * 200)) == 41
