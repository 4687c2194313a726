"""``firetrail query``: messages by key, newest first."""

from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.stores import GOLDEN, NAMES, copy_of, flip, records


@pytest.mark.parametrize("name", NAMES)
def test_the_newest_message_comes_first(name: str, firetrail: Firetrail) -> None:
    wanted = [
        record.physical_offset
        for record in reversed(records(GOLDEN / name))
        if record.topic == "T1" and "common" in record.keys
    ]
    result = firetrail(
        *("query", GOLDEN / name, "--topic", "T1", "--key", "common", "--max", 1000, "--json")
    )
    assert result.code == 0
    assert [line["physical_offset"] for line in result.lines] == wanted
    few = firetrail(
        "query", GOLDEN / name, "--topic", "T1", "--key", "common", "--max", 3, "--json"
    )
    assert few.lines == result.lines[:3]


@pytest.mark.parametrize("name", NAMES)
def test_a_message_is_found_by_its_unique_key(name: str, firetrail: Firetrail) -> None:
    record = next(record for record in records(GOLDEN / name) if record.unique_key)
    result = firetrail(
        *("query", GOLDEN / name, "--topic", record.topic, "--key", record.unique_key, "--json")
    )
    assert result.json["physical_offset"] == record.physical_offset


def test_messages_outside_the_times_are_not_found(firetrail: Firetrail) -> None:
    times = [record.store_time for record in records(GOLDEN / "v4-rolled") if record.topic == "T1"]
    begin, end = times[50], times[100]
    result = firetrail(
        *("query", GOLDEN / "v4-rolled", "--topic", "T1", "--key", "common"),
        *("--begin", begin, "--end", end, "--max", 1000, "--json"),
    )
    assert len(result.lines) == sum(begin <= time <= end for time in times)


def test_nothing_found(firetrail: Firetrail) -> None:
    result = firetrail("query", GOLDEN / "v4-clean", "--topic", "T1", "--key", "none", "--json")
    assert (result.code, result.out, result.err) == (0, "", "")
    result = firetrail("query", GOLDEN / "v4-clean", "--topic", "T9", "--key", "none")
    assert result.code == 2 and "no topic 'T9'" in result.err


def test_the_table_shows_what_was_found(firetrail: Firetrail) -> None:
    result = firetrail("query", GOLDEN / "v4-clean", "--topic", "T1", "--key", "k3")
    assert result.out.splitlines()[1].endswith("k3 common             hello 3")


def test_a_damaged_index_file_is_reported(tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of("v4-rolled", tmp_path)
    flip(min((root / "index").iterdir()), 0, 7)
    result = firetrail("query", root, "--topic", "T1", "--key", "common", "--json")
    assert result.code == 1
    assert result.lines and "messages may be missing" in result.err


@pytest.mark.parametrize("argument", ["--max=-1", "--begin=x"])
def test_numbers_that_are_none_are_refused(argument: str, firetrail: Firetrail) -> None:
    result = firetrail("query", GOLDEN / "v4-clean", "--topic", "T", "--key", "k", argument)
    assert result.code == 2
    assert "expected a whole number, at least 0: " in result.err
