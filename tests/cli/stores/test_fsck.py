"""``firetrail fsck``: the report, for scripts and for people, and the exit code."""

from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.stores import GOLDEN, NAMES, copy_of, flip, records, state

LOG = f"commitlog/{0:020}"
KEYS = [
    *("ok", "store", "state", "owner", "problems", "problems_omitted", "warnings", "messages"),
    *("begin_offset", "end_offset", "last_store_time", "torn_tail", "log_files", "queues"),
    *("units", "index_files", "index_entries", "advice"),
]


@pytest.mark.parametrize("name", NAMES)
def test_stores_of_java_have_no_problems(name: str, tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of(name, tmp_path)
    before = state(root)
    result = firetrail("fsck", root, "--json")
    assert (result.code, result.err) == (0, "")
    assert list(result.json) == KEYS
    assert result.json["ok"] is True
    assert result.json["problems"] == []
    assert result.json["messages"] == len(records(root))
    assert state(root) == before


def test_a_flipped_bit_is_a_problem_with_its_place(tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of("v4-clean", tmp_path)
    flip(root / LOG, 332 + 88)
    result = firetrail("fsck", root, "--json")
    assert result.code == 1
    assert result.json["ok"] is False
    (problem,) = result.json["problems"]
    assert list(problem) == ["file", "offset", "physical_offset", "kind", "detail"]
    assert (problem["file"], problem["offset"]) == (LOG, 332)
    assert (problem["physical_offset"], problem["kind"]) == (332, "body-crc")


def test_the_summary_is_one_line(tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of("v4-clean", tmp_path)
    result = firetrail("fsck", root)
    assert result.code == 0
    assert result.out == (
        f"{root} (closed): ok: 21 messages in 3.1 KiB of log, 19 units of 7 queues, 38 entries "
        "of 1 index file; last stored 2026-11-15 06:58:56.352Z\n"
    )
    flip(root / LOG, 332 + 4)
    flip(root / "checkpoint", 1, 3)
    result = firetrail("fsck", root)
    assert result.code == 1
    first, last, advice = result.out.splitlines()
    assert advice.startswith(f"to repair it: 'firetrail salvage {root} --into DIR' copies every")
    assert first == (
        f"{LOG} at 332 (record 332): record-magic: magic: 0xDBA320A7 is not that of a record; "
        "the next good record is at 498"
    )
    assert "1 problem: 20 messages" in last


def test_delay_levels(firetrail: Firetrail) -> None:
    result = firetrail("fsck", GOLDEN / "v4-clean", "--delay-levels", "1s 2s 3s", "--json")
    assert [problem["kind"] for problem in result.json["problems"]] == ["unit-wrong"]
    result = firetrail("fsck", GOLDEN / "v4-clean", "--delay-levels", "soon")
    assert result.code == 2
    assert "'soon' is not a number with a unit" in result.err


@pytest.mark.parametrize("make", ["missing", "empty", "file"])
def test_a_folder_without_a_log_is_refused(make: str, tmp_path: Path, firetrail: Firetrail) -> None:
    path = tmp_path / "s"
    if make == "empty":
        path.mkdir()
    elif make == "file":
        path.touch()
    result = firetrail("fsck", path, "--json")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"firetrail: error: {path}: ")
