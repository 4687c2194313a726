"""``firetrail dump``: which messages, in which form, and what it says about damage."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.helpers import crash_image, put_all, small_config
from tests.stores import (
    CRASHED,
    GOLDEN,
    LIGHT,
    NAMES,
    copy_of,
    flip,
    log_file,
    overwrite,
    records,
    state,
    truncate,
)

from firetrail import Message, Store
from firetrail.format.layout import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from firetrail.format.record import Record
from firetrail.format.values.hosts import format_host
from firetrail.store.inspect.view import StoreView

FIELDS = [
    *("physical_offset", "size", "magic", "topic", "queue_id", "queue_offset", "sys_flag", "flag"),
    *("born_time", "born_host", "store_time", "store_host", "reconsume_times", "prepared_offset"),
    *("body_crc", "crc_ok", "properties", "body"),
]
UNSEEN = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
FIRST = "0" * 20


def expected_of(record: Record) -> dict[str, object]:
    return {
        field: getattr(record, field)
        for field in FIELDS
        if field not in ("born_host", "store_host", "body")
    } | {
        "born_host": format_host(record.born_host),
        "store_host": format_host(record.store_host),
        "body": base64.b64encode(record.body).decode(),
    }


class TestLightQueues:
    """Queues that messages of other topics are in as well."""

    def test_messages_of_a_light_queue_are_dumped(self, firetrail: Firetrail) -> None:
        with StoreView.open(GOLDEN / LIGHT) as view:
            units = [view.queues.open("%LMQ%a", 0).unit(number) for number in range(23)]
        result = firetrail("dump", GOLDEN / LIGHT, "--topic", "%LMQ%a", "--json")
        assert (result.code, result.err) == (0, "")
        places = [unit.physical_offset for unit in units if unit is not None]
        assert [line["physical_offset"] for line in result.lines] == places
        assert len(places) == 23
        assert "mqtt" in {line["topic"] for line in result.lines}

    def test_a_unit_of_another_light_queue_is_reported(
        self, tmp_path: Path, firetrail: Firetrail
    ) -> None:
        root = copy_of(LIGHT, tmp_path)
        a, b = (root / "consumequeue" / name / "0" / FIRST for name in ("%LMQ%a", "%LMQ%b"))
        only_in_a = a.read_bytes()[:20]  # the first message
        overwrite(b, 0, only_in_a)
        result = firetrail("dump", root, "--topic", "%LMQ%b", "--json")
        assert result.code == 1
        assert "queue %LMQ%b/0: message 0 is missing at physical offset 0 (" in result.err


class TestTheLog:
    @pytest.mark.parametrize("name", NAMES)
    def test_json_contains_every_field_of_every_message(
        self, name: str, firetrail: Firetrail
    ) -> None:
        result = firetrail("dump", GOLDEN / name, "--json")
        assert (result.code, result.err) == (0, "")
        assert result.lines == [expected_of(record) for record in records(GOLDEN / name)]
        assert all(list(line) == FIELDS for line in result.lines)

    @pytest.mark.parametrize("name", NAMES)
    def test_the_table_has_one_line_per_message(self, name: str, firetrail: Firetrail) -> None:
        result = firetrail("dump", GOLDEN / name)
        assert result.code == 0
        assert len(result.out.splitlines()) == 1 + len(records(GOLDEN / name))
        assert "hello 1" in result.out and "\033" not in result.out

    def test_from_and_limit(self, firetrail: Firetrail) -> None:
        offsets = [record.physical_offset for record in records(GOLDEN / "v4-rolled")]

        def dumped(*arguments: object) -> list[int]:
            result = firetrail("dump", GOLDEN / "v4-rolled", "--json", *arguments)
            return [line["physical_offset"] for line in result.lines]

        assert dumped("--limit", 3) == offsets[:3]
        assert dumped("--limit", 0) == []
        assert dumped("--from", offsets[200]) == offsets[200:]
        assert dumped("--from", offsets[100] + 1, "--limit", 2) == offsets[101:103]
        assert dumped("--from", 10**9) == []
        assert firetrail("dump", GOLDEN / "v4-rebuilt", "--json", "--from", 5).lines == (
            firetrail("dump", GOLDEN / "v4-rebuilt", "--json").lines
        )


class TestATopic:
    @pytest.mark.parametrize("name", NAMES)
    def test_merged_in_the_order_of_the_log(self, name: str, firetrail: Firetrail) -> None:
        result = firetrail("dump", GOLDEN / name, "--topic", "T1", "--json")
        wanted = [record for record in records(GOLDEN / name) if record.topic == "T1"]
        assert (result.code, result.err) == (0, "")
        assert result.lines == [expected_of(record) for record in wanted]

    def test_one_queue_is_dumped_from_an_offset(self, firetrail: Firetrail) -> None:
        result = firetrail(
            *("dump", GOLDEN / "v4-rolled", "--topic", "T1", "--queue", 1, "--from", 90),
            *("--limit", 20, "--json"),
        )
        assert [(line["queue_id"], line["queue_offset"]) for line in result.lines] == [
            (1, offset) for offset in range(90, 110)
        ]

    def test_what_consumers_do_not_see(self, firetrail: Firetrail) -> None:
        result = firetrail("dump", GOLDEN / "v4-clean", "--topic", "TH", "--json")
        assert [line["sys_flag"] & TRANSACTION_MASK for line in result.lines] == [8]
        whole = firetrail("dump", GOLDEN / "v4-clean", "--json").lines
        assert sum(line["sys_flag"] & TRANSACTION_MASK in UNSEEN for line in whole) == 2

    def test_an_unknown_topic_is_an_error_with_a_suggestion(self, firetrail: Firetrail) -> None:
        result = firetrail("dump", GOLDEN / "v4-clean", "--topic", "t11")
        assert (result.code, result.out) == (2, "")
        assert "no topic 't11'; did you mean T1?" in result.err
        result = firetrail("dump", GOLDEN / "v4-clean", "--topic", "orders")
        assert "the store has SCHEDULE_TOPIC_XXXX, T1, T6, TB, TE and 1 more" in result.err

    def test_an_unknown_queue_is_an_error_that_lists_the_queues(self, firetrail: Firetrail) -> None:
        result = firetrail("dump", GOLDEN / "v4-clean", "--topic", "T1", "--queue", 7)
        assert result.code == 2
        assert "topic 'T1' has no queue 7; it has 0, 1" in result.err

    def test_a_queue_without_a_topic_is_refused(self, firetrail: Firetrail) -> None:
        result = firetrail("dump", GOLDEN / "v4-clean", "--queue", 0)
        assert (result.code, result.err) == (2, "firetrail: error: --queue needs --topic\n")

    def test_a_unit_that_points_to_another_message_is_reported(
        self, tmp_path: Path, firetrail: Firetrail
    ) -> None:
        root = copy_of("v4-clean", tmp_path)
        queue = root / "consumequeue" / "T1" / "0" / FIRST
        overwrite(queue, 40, queue.read_bytes()[20:40])
        result = firetrail("dump", root, "--topic", "T1", "--json")
        assert result.code == 1
        assert "queue T1/0: message 2 is missing at physical offset 332" in result.err
        assert len(result.lines) == 11


class TestDamage:
    def test_a_wrong_body_is_shown_and_marked(self, tmp_path: Path, firetrail: Firetrail) -> None:
        root = copy_of("v4-clean", tmp_path)
        flip(root / "commitlog" / FIRST, 166 + 88)
        result = firetrail("dump", root, "--json")
        assert result.code == 1
        assert [line["crc_ok"] for line in result.lines] == [True, False] + [True] * 19
        assert "commitlog/00000000000000000000 at 166" in result.err and "body-crc" in result.err
        assert "WRONG CHECKSUM" in firetrail("dump", root).out
        by_topic = firetrail("dump", root, "--topic", "T1", "--json")
        assert by_topic.code == 1
        assert [line["crc_ok"] for line in by_topic.lines][:3] == [True, False, True]

    def test_a_flip_that_only_the_property_crc_sees(
        self, tmp_path: Path, firetrail: Firetrail
    ) -> None:
        root = copy_of("v5-propcrc", tmp_path)
        flip(root / "commitlog" / FIRST, 40)  # the born time
        result = firetrail("dump", root, "--json")
        assert result.code == 1
        assert [line["crc_ok"] for line in result.lines] == [False] + [True] * 20

    def test_it_goes_on_behind_bytes_that_are_no_record(
        self, tmp_path: Path, firetrail: Firetrail
    ) -> None:
        root = copy_of("v4-clean", tmp_path)
        flip(root / "commitlog" / FIRST, 332 + 4)
        result = firetrail("dump", root, "--json")
        assert result.code == 1
        assert [line["physical_offset"] for line in result.lines][:4] == [0, 166, 498, 664]
        assert (
            "commitlog/00000000000000000000 at 332 (physical offset 332): record-magic: magic: "
            "0xDBA320A7 is not that of a record; continued at 498" in result.err
        )

    def test_a_log_that_ends_in_damage(self, tmp_path: Path, firetrail: Firetrail) -> None:
        root = copy_of("v4-clean", tmp_path)
        truncate(root / "commitlog" / FIRST, 1000)
        result = firetrail("dump", root, "--json")
        assert result.code == 1
        assert len(result.lines) == 6
        assert "at 996" in result.err and "stopped there" in result.err

    @pytest.mark.parametrize("name", ["v4-rolled", "v5-crashed"])
    def test_a_missing_file_is_reported(
        self, name: str, tmp_path: Path, firetrail: Firetrail
    ) -> None:
        root = copy_of(name, tmp_path)
        expected = records(root)
        path, _ = log_file(root, expected[len(expected) // 2].physical_offset)
        path.unlink()
        result = firetrail("dump", root, "--json")
        assert result.code == 1
        assert f"commitlog/{path.name} at 0" in result.err and "the file is missing" in result.err
        assert [line["physical_offset"] for line in result.lines] == [
            record.physical_offset for record in records(root)
        ]

    def test_a_port_that_is_none(self, tmp_path: Path, firetrail: Firetrail) -> None:
        root = copy_of("v4-clean", tmp_path)
        flip(root / "commitlog" / FIRST, 52, 7)
        result = firetrail("dump", root, "--json", "--limit", 1)
        assert result.json["born_host"] == "10.1.2.3:-2147433647"

    def test_a_torn_tail_is_no_problem(self, tmp_path: Path, firetrail: Firetrail) -> None:
        with Store.open(tmp_path / "s", small_config()) as store:
            put_all(store, [b"x"] * 3)
            end = store.log_range[1]
            root = crash_image(tmp_path / "s", tmp_path / "crashed")
        overwrite(root / "commitlog" / FIRST, end, b"\0\0\1\0half a record")
        result = firetrail("dump", root, "--json")
        assert result.code == 0
        assert len(result.lines) == 3
        assert "after the last good one, is left out" in result.err


@pytest.mark.parametrize("name", ["v4-clean", *CRASHED])
def test_nothing_is_written(name: str, tmp_path: Path, firetrail: Firetrail) -> None:
    root = copy_of(name, tmp_path)
    before = state(root)
    for command in (["dump"], ["dump", "--topic", "T1"], ["info"]):
        firetrail(command[0], root, *command[1:])
    firetrail("query", root, "--topic", "T1", "--key", "common")
    assert state(root) == before


def test_a_store_in_use(tmp_path: Path, firetrail: Firetrail) -> None:
    with Store.open(tmp_path, small_config()) as store:
        put_all(store, [b"%d" % n for n in range(50)], keys=["k"], tags="paid")
        before = state(tmp_path)
        assert len(firetrail("dump", tmp_path, "--json").lines) == 50
        assert len(firetrail("dump", tmp_path, "--topic", "T", "--json").lines) == 50
        assert firetrail("info", tmp_path, "--json").json["state"] == "open"
        found = firetrail("query", tmp_path, "--topic", "T", "--key", "k", "--max", 99, "--json")
        assert len(found.lines) == 50
        assert state(tmp_path) == before
        store.put(Message("T", b"more"))


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "firetrail", "dump", str(GOLDEN / "v4-rolled"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("command", ["info", "dump", "query"])
def test_a_folder_without_a_log_is_refused(
    command: str, tmp_path: Path, firetrail: Firetrail
) -> None:
    more = ["--topic", "T", "--key", "k"] if command == "query" else []
    result = firetrail(command, tmp_path, *more)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"firetrail: error: {tmp_path}: not a message store: it has no folder 'commitlog'; if a "
        "broker keeps the log elsewhere, write its line storePathCommitLog=… to "
        f"{tmp_path}/firetrail.log-paths\n"
    )
