"""Positions beyond the end of their queue: set back by a start and by a repair, and reported."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk, records, talking

from firetrail.broker.broker import Broker
from firetrail.broker.pop.pop_checkpoints import REVIVE_GROUP
from firetrail.broker.state import excess_positions
from firetrail.broker.state.excess_positions import ExcessPosition
from firetrail.cli.main import main
from firetrail.format.files import config_json
from firetrail.format.names import CONSUMER_OFFSETS, DELAY_OFFSETS
from firetrail.format.values.delay import DelayLevels
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.settings.config_file import ORDERS, ConfigFile
from firetrail.store.queues.queue_table import QueueTable
from firetrail.system import System

SMALL_ANYWHERE = SMALL.replace(store_host=SMALL.store_host._replace(port=0))
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def offsets_of(folder: Path, name: str = CONSUMER_OFFSETS) -> dict[object, object]:
    found: dict[object, object] = config_json.loads((folder / "config" / name).read_bytes())[
        "offsetTable"
    ]
    return found


def write(folder: Path, name: str, content: dict[str, object]) -> None:
    ConfigFile(System(), folder, name).save(content)


async def fill(folder: Path, count: int = 10) -> None:
    """Store messages, which a group has consumed."""
    async with talking(folder) as talk:
        for number in range(count):
            await talk.send("T1", b"%d" % number)
        await talk.pull_until("T1", count)
        await talk.commit(count)


def damage(folder: Path, message: int) -> None:
    """Flip a bit in the magic number of a message."""
    log = folder / "commitlog" / f"{0:020}"
    content = bytearray(log.read_bytes())
    at = 0
    for _ in range(message):
        at += int.from_bytes(content[at : at + 4], "big")
    content[at + 4] ^= 1
    log.write_bytes(content)


async def consumes_new_messages(talk: Talk) -> None:
    """Send a message; return what a group receives that continues at its offset."""
    await talk.send("T1", b"new")
    offset = await talk.committed()
    assert offset == 4
    answer = await talk.pull("T1", offset, sysFlag=6)
    assert [record.body for record in records(answer.content)] == [b"new"]


async def test_after_a_repair_no_new_message_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(tmp_path)
    damage(tmp_path, 4)
    assert main(["fsck", str(tmp_path), "--repair", "truncate-log", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)["repaired"]
    line = "group CG: offset 10 of T1/0 is beyond the end of the queue: set back to 4"
    assert line in reported
    assert offsets_of(tmp_path)["T1@CG"] == {0: 4}
    async with talking(tmp_path) as talk:
        await consumes_new_messages(talk)


async def test_a_start_sets_back_offsets_beyond_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This works in any store, also in one without Firetrail's checksums."""
    await fill(tmp_path, 4)
    for file in (tmp_path / "config").glob("*.bak"):
        file.unlink()
    table = '{"offsetTable":{"T1@CG":{0:1155,1:3},"Gone@CG":{0:7},"T1@Good":{0:4},"T1@No":{0:0}}}'
    (tmp_path / "config" / CONSUMER_OFFSETS).write_text(table)
    async with talking(tmp_path) as talk:
        await consumes_new_messages(talk)
    assert offsets_of(tmp_path) == {
        "T1@CG": {0: 4, 1: 0},
        "Gone@CG": {0: 0},
        "T1@Good": {0: 4},
        "T1@No": {0: 0},
    }
    lines = [r.getMessage() for r in caplog.records if "beyond the end" in r.getMessage()]
    assert lines == [
        "group CG: offset 1155 of T1/0 is beyond the end of the queue: set back to 4",
        "group CG: offset 3 of T1/1 is beyond the end of the queue: set back to 0",
        "group CG: offset 7 of Gone/0 is beyond the end of the queue: set back to 0",
    ]


@pytest.mark.parametrize("by_repair", [False, True])
@pytest.mark.parametrize(
    ("file", "ignored"),
    [
        (f"batchconsumequeue/Elsewhere/0/{0:020d}", ()),
        ("config/topics/CURRENT", ("rocksdb",)),
        (f"dledger-n0/data/{0:020d}", ("dledger",)),
    ],
)
async def test_positions_in_files_that_are_not_read_are_kept(
    file: str, ignored: tuple[str, ...], by_repair: bool, tmp_path: Path
) -> None:
    """Groups keep their offsets when a Java broker takes the folder over again."""
    await fill(tmp_path, 4)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(b"")
    write(tmp_path, CONSUMER_OFFSETS, {"offsetTable": {"Elsewhere@CG": {0: 500}}})
    if by_repair:
        assert excess_positions.set_back_files(System(), tmp_path, lambda topic, queue_id: 0) == []
    else:
        broker = Broker(tmp_path, store=SMALL_ANYWHERE, ignore_unsupported=ignored)
        await broker.start()
        await broker.stop()
    assert offsets_of(tmp_path)["Elsewhere@CG"] == {0: 500}


async def test_a_good_store_starts_without_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(tmp_path)

    before = (tmp_path / "config" / CONSUMER_OFFSETS).read_bytes()
    async with talking(tmp_path) as talk:
        assert await talk.committed() == 10
    assert (tmp_path / "config" / CONSUMER_OFFSETS).read_bytes() == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_pull_beyond_the_end_is_answered_as_by_java(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await talk.send("T1")
        await talk.pull_until("T1", 1)
        answer = await talk.pull("T1", 1152)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.remark == "OFFSET_OVERFLOW_BADLY"
        assert answer.fields["nextBeginOffset"] == "1"


async def test_delay_levels_beyond_the_end_are_set_back(tmp_path: Path) -> None:
    """A level that was beyond its queue delivers the next message as well."""
    store = SMALL.replace(delay_levels=DelayLevels.parse("0s 1h"))
    write(tmp_path, DELAY_OFFSETS, {"offsetTable": {1: 500, 2: 3}})

    async with talking(tmp_path, store=store) as talk:
        await talk.send("T1", b"soon", i="DELAY\x011\x02")
        assert [r.body for r in await talk.pull_until("T1", 1)] == [b"soon"]
    assert offsets_of(tmp_path, DELAY_OFFSETS) == {1: 1, 2: 0}


def order(offsets: list[int]) -> dict[str, object]:
    return {"popTime": 1, "i": 1000, "o": offsets, "l": 1, "cm": 0}


def test_a_repair_sets_back_offsets_in_files(tmp_path: Path) -> None:
    ends: dict[tuple[str, int], int | None] = {("T1", 0): 4, ("Bad", 0): None, (REVIVE, 0): 6}
    write(
        tmp_path,
        CONSUMER_OFFSETS,
        {
            "offsetTable": {
                "T1@A": {0: 5},
                "T1@B": {0: 4},
                "Bad@A": {0: 9},
                f"{REVIVE}@{REVIVE_GROUP}": {0: 6, 1: 2, 2: -1},
            }
        },
    )
    write(tmp_path, DELAY_OFFSETS, {"offsetTable": {3: 2}})
    pops = {"T1@A": {0: order([2, 1, 2]), 1: order([])}, "T1@B": {0: order([2, 1])}}
    write(tmp_path, ORDERS, {"table": pops})

    def end(topic: str, queue_id: int) -> int | None:
        return ends.get((topic, queue_id), 0)

    reported = excess_positions.set_back_files(System(), tmp_path, end)
    assert reported == [
        "group A: offset 5 of T1/0 is beyond the end of the queue: set back to 4",
        f"group {REVIVE_GROUP}: offset 6 of {REVIVE}/0 is beyond the end of the queue: "
        "set back to 5",
        f"group {REVIVE_GROUP}: offset 2 of {REVIVE}/1 is beyond the end of the queue: removed",
        "delay level 3: offset 2 of SCHEDULE_TOPIC_XXXX/2 is beyond the end of the queue: "
        "set back to 0",
        "ordered pop of group A: offset 4 of T1/0 is beyond the end of the queue: removed",
    ]
    assert offsets_of(tmp_path) == {
        "T1@A": {0: 4},
        "T1@B": {0: 4},
        "Bad@A": {0: 9},
        f"{REVIVE}@{REVIVE_GROUP}": {0: 5, 2: -1},
    }
    left = config_json.loads((tmp_path / "config" / ORDERS).read_bytes())["table"]
    assert {key: list(queues) for key, queues in left.items()} == {"T1@A": [1], "T1@B": [0]}
    assert excess_positions.set_back_files(System(), tmp_path, end) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / CONSUMER_OFFSETS).write_text("{")
    (reported,) = excess_positions.set_back_files(System(), tmp_path, lambda topic, queue_id: 0)
    assert reported.startswith("the positions in this file were not changed: ")
    assert CONSUMER_OFFSETS in reported


def test_many_overruns_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    found = [
        ExcessPosition("group G", "T", n, 9, 1) for n in range(excess_positions.LOGGED_MAX + 5)
    ]
    excess_positions.log_excess_positions(found)
    assert len(caplog.records) == excess_positions.LOGGED_MAX + 1
    assert caplog.records[-1].getMessage() == "5 more positions were beyond their queues"


def shortened(folder: Path) -> None:
    (folder / "consumequeue" / "T1" / "0" / f"{0:020}").write_bytes(b"short")


@pytest.mark.parametrize("change", [shortened, None])
async def test_reaches_agrees_with_the_open_queue(
    change: Callable[[Path], None] | None, tmp_path: Path
) -> None:
    await fill(tmp_path)
    if change is not None:
        change(tmp_path)
    table = QueueTable(System(), tmp_path, SMALL.consume_queue_file_size, writable=False)
    table.list_folders()
    end = 0 if change else 10
    for offset in (-1, 0, 1, 9, 10, 11, 1000, 1001, 5000, 1 << 62):
        assert table.reaches("T1", 0, offset) == (offset <= end)
    assert not table.loaded
    if change is None:
        assert table.open("T1", 0).max_offset == end
        assert [table.reaches("T1", 0, offset) for offset in (10, 11)] == [True, False]
    assert (table.reaches("T9", 0, 0), table.reaches("T9", 0, 1)) == (True, False)
    table.close()


def test_a_queue_reaches_its_expired_files(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    (folder / f"{40000:020}").write_bytes(bytes(20000))
    table = QueueTable(System(), tmp_path, 20000)
    table.list_folders()
    assert table.reaches("T", 0, 10)
    assert table.reaches("T", 0, 2000)
    assert not table.reaches("T", 0, 2001)
    shutil.rmtree(folder)
    table.close()
