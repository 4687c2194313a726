"""Damaged records are repaired with the good copies of other brokers, and served after that."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.broker.brokers import SMALL, Talk
from tests.broker.brokers import records as records_of
from tests.broker.pairs import Group, caught_up, send
from tests.broker.pops import ask_pop
from tests.client.clusters import until
from tests.replication.logs import log_content
from tests.stores import flip, log_file, overwrite, records

from firetrail.broker.replica import record_repair
from firetrail.broker.services import scrub as scrub_service
from firetrail.client import Admin
from firetrail.format.kernels.encode import RecordWriter
from firetrail.format.layout import MAGIC_BLANK, RECORD_HEAD
from firetrail.format.record import Record, encode_record
from firetrail.format.values.delay import DelayLevels
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.store.settings.store_config import BrokerRole

STORE = SMALL.replace(commit_log_file_size=4096, max_message_size=1000, property_crc=True)
REPLICA = STORE.replace(role=BrokerRole.SLAVE)
BODIES = [b"%04d" % number * 50 for number in range(40)]
"""They fill some log files."""
POP = {"queueId": 0, "maxMsgNums": 32, "pollTime": 60_000}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once; nothing is scrubbed by itself."""
    monkeypatch.setattr(record_repair, "RETRY_S", 0.02)
    monkeypatch.setattr(record_repair, "CALM_S", 0.02)
    monkeypatch.setattr(scrub_service, "FIRST_S", 1e6)


class Damaged(NamedTuple):
    """A pair of brokers, the records of their logs, and the folders of both."""

    group: Group
    master: Talk
    replica: Talk
    stored: list[Record]
    folder: Path

    def of(self, side: str) -> tuple[Talk, Path]:
        return (self.master if side == "master" else self.replica), self.folder / side

    def flip(self, side: str, record: Record, at: int) -> tuple[Path, int]:
        """Flip a bit of a record, and return where it is."""
        path, position = log_file(self.folder / side, record.physical_offset)
        flip(path, position + at, bit=3)
        return path, position


@asynccontextmanager
async def pair(folder: Path, **settings: int) -> AsyncIterator[Damaged]:
    store = STORE.replace(**settings) if settings else STORE
    async with Group(folder) as group:
        master = await group.start("master", store)
        replica = await group.start("replica", store.replace(role=BrokerRole.SLAVE))
        for body in BODIES:
            await send(master, body)
        await caught_up(replica, master)
        for talk in (master, replica):
            await asyncio.to_thread(talk.broker.store.flush)
        yield Damaged(group, master, replica, records(folder / "master"), folder)


def fields(record: Record) -> Iterator[tuple[str, int]]:
    """Yield each field of a record of STORE, and the position of a byte in it."""
    names = (
        *(("size", 4), ("magic", 4), ("body CRC", 4), ("queue id", 4), ("flag", 4)),
        *(("queue offset", 8), ("physical offset", 8), ("system flag", 4), ("born time", 8)),
        *(("born host", 8), ("store time", 8), ("store host", 8), ("reconsume times", 4)),
        *(("prepared offset", 8), ("body length", 4), ("body", len(record.body))),
        *(("topic length", 1), ("topic", len(record.topic)), ("properties length", 2)),
        ("properties", len(record.raw_properties)),
    )
    at = 0
    for name, size in names:
        yield name, at + size - 1 if name != "properties" else at + 2
        at += size
    assert at == record.size


def log_of(root: Path) -> bytes:
    """Return the bytes of a log, without files that were created ahead."""
    return log_content(root).rstrip(b"\0")


def sealed(record: Record) -> bytes:
    """Return the bytes of a record, with a checksum that fits."""
    content = bytearray(encode_record(record))
    RecordWriter(content).seal(0, len(content))
    return bytes(content)


async def scrubbed(talk: Talk) -> None:
    """Read the whole log of a broker once."""
    while await asyncio.to_thread(talk.broker.broker_store.log_scrub.step, 1 << 20):
        pass


async def repaired(talk: Talk) -> None:
    await until(lambda: len(talk.broker.broker_store.damage) == 0)


async def bodies(talk: Talk) -> list[bytes]:
    found: list[bytes] = []
    offset, end = 0, 1
    while offset < end:
        answer = await talk.pull("T1", offset)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
        found += [record.body for record in records_of(answer.content)]
        offset, end = int(answer.fields["nextBeginOffset"]), int(answer.fields["maxOffset"])
    return found


@pytest.mark.parametrize("side", ["master", "replica"])
@pytest.mark.parametrize("number", [2, -2], ids=["old segment", "new segment"])
async def test_every_field_is_found_and_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, side: str, number: int
) -> None:
    """Found by the scrub, logged with file and offset, and repaired on disk."""
    async with pair(tmp_path) as made:
        talk, root = made.of(side)
        good = log_of(root)
        record = made.stored[number]
        names = [name for name, _ in fields(record)]
        for name, at in fields(record):
            caplog.clear()
            talk.broker._terms.current.repair._limited_log._kinds.clear()  # log each of them
            path, position = made.flip(side, record, at)
            assert log_of(root) != good, name
            await scrubbed(talk)
            await repaired(talk)
            assert log_of(root) == good, name
            where = f"{path} at offset {position} (record {record.physical_offset})"
            assert f"a record is damaged: {where}" in caplog.text, name
            assert "repaired with the copy of 127.0.0.1:" in caplog.text, name
        damage = talk.broker.broker_store.damage
        assert damage.found == damage.repaired == len(names)


@pytest.mark.parametrize("side", ["master", "replica"])
async def test_pages_and_end_marks_are_repaired(tmp_path: Path, side: str) -> None:
    """Zeros over several records, and over the mark at the end of a file."""
    async with pair(tmp_path) as made:
        talk, root = made.of(side)
        good = log_of(root)
        size = STORE.commit_log_file_size
        first = next(r for r in made.stored if r.physical_offset >= size)
        path, _ = log_file(root, first.physical_offset)
        blank = path.read_bytes().rindex(MAGIC_BLANK.to_bytes(4, "big")) - 4
        overwrite(path, 1000, bytes(1500))
        overwrite(path, blank - 200, bytes(208))
        await scrubbed(talk)
        await repaired(talk)
        assert log_of(root) == good
        assert await bodies(made.master) == BODIES


@pytest.mark.parametrize(
    ("property_crc", "at"), [(True, 100), (False, RECORD_HEAD.offsets["queue_offset"] + 7)]
)
async def test_a_pull_waits_for_the_repair(tmp_path: Path, property_crc: bool, at: int) -> None:
    """Nobody has looked for damage before; the altered body is not served.

    Without a checksum over the head, only the queue says that a queue offset was altered.
    """
    async with pair(tmp_path, property_crc=property_crc) as made:
        for number in (0, 17, 38):
            made.flip("master", made.stored[number], at)
        assert await bodies(made.master) == BODIES
        assert made.master.broker.broker_store.damage.repaired == 3
        assert log_of(tmp_path / "master") == log_of(tmp_path / "replica")


async def test_an_altered_record_that_was_copied_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path, property_crc=False, repair_wait_ms=100) as made:
        for side in ("master", "replica"):
            made.flip(side, made.stored[17], RECORD_HEAD.offsets["queue_offset"] + 7)
        assert await bodies(made.master) == BODIES[:17] + BODIES[18:]
    assert "message 17 of T1/0: it says that it is message 25" in caplog.text
    assert "it has the same record" in caplog.text


async def test_a_pop_waits_for_the_repair(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        made.flip("master", made.stored[0], 100)
        answer = await ask_pop(made.master, POP)
        assert [record.body for record in records_of(answer.content)] == BODIES[:32]


async def test_a_delayed_message_waits_for_the_repair(tmp_path: Path) -> None:
    """It is delivered, although its record was damaged when it was due."""
    async with Group(tmp_path) as group:
        master = await group.start("master", STORE)
        replica = await group.start("replica", REPLICA)
        for body in (b"delayed " * 30, b"last"):
            assert (await master.send("T1", body, {"i": "DELAY\x0118\x02"})).code == 0
        await caught_up(replica, master)
        await asyncio.to_thread(replica.broker.store.flush)
        await master.broker.stop()
        first = records(tmp_path / "master")[0]
        path, at = log_file(tmp_path / "master", first.physical_offset)
        flip(path, at + 100)
        levels = DelayLevels.parse(" ".join(["0s"] * 18))
        master = await group.start("master", STORE.replace(delay_levels=levels))
        store = master.broker.store
        await until(lambda: store.max_offset("T1", 0) == 2)
        assert await bodies(master) == [b"delayed " * 30, b"last"]
        assert master.broker.broker_store.damage.repaired == 1


async def test_nobody_waits_longer_than_the_settings_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both copies are damaged: consumers skip the message, and the log says why."""
    async with pair(tmp_path, repair_wait_ms=0) as made:
        for side in ("master", "replica"):
            made.flip(side, made.stored[5], 100)
        assert await bodies(made.master) == [*BODIES[:5], *BODIES[6:]]
        assert "message 5 is damaged and left out" in caplog.text
        assert len(made.master.broker.broker_store.damage) == 1


async def test_a_broker_without_others_skips_the_message_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pull and a pop agree, and the figures of the broker count it."""
    async with Group(tmp_path) as group:
        talk = await group.start("alone", STORE)
        for body in BODIES:
            await send(talk, body)
        hit = records(tmp_path / "alone")[3]
        path, at = log_file(tmp_path / "alone", hit.physical_offset)
        flip(path, at + 100)
        left = [*BODIES[:3], *BODIES[4:]]
        assert await bodies(talk) == left
        popped: list[bytes] = []
        while len(popped) < len(left):
            answer = await ask_pop(talk, POP)
            popped += [record.body for record in records_of(answer.content)]
        assert popped == left
        answer = await talk.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=hit.physical_offset)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "checksum" in (answer.remark or "")
        async with Admin(group.namesrv) as admin:
            found = await admin.runtime_info(talk.broker.address)
        figures = [found[f"damagedRecords{name}"] for name in ("", "Found", "Repaired")]
        assert figures == ["1", "1", "0"]
    assert f"consumers skip it: {path} at offset {at}" in caplog.text
    assert "no other broker of this name is known" in caplog.text


async def test_the_last_record_is_repaired_when_another_follows(tmp_path: Path) -> None:
    """Only an equal record after it proves that the logs are the same at this place."""
    async with pair(tmp_path) as made:
        made.flip("replica", made.stored[-1], 100)
        await scrubbed(made.replica)
        repair = made.replica.broker._terms.current.repair
        await repair.round()
        assert len(made.replica.broker.broker_store.damage) == 1
        await send(made.master, b"next")
        await caught_up(made.replica, made.master)
        await asyncio.to_thread(made.replica.broker.store.flush)
        await repaired(made.replica)
        assert log_of(tmp_path / "master") == log_of(tmp_path / "replica")


async def test_a_broker_with_another_log_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its record is good, but the one after it is another one."""
    async with pair(tmp_path, repair_wait_ms=0) as made:
        made.flip("replica", made.stored[5], 100)
        path, at = log_file(tmp_path / "replica", made.stored[6].physical_offset)
        other = made.stored[6]._replace(flag=9)
        overwrite(path, at, sealed(other))
        before = log_of(tmp_path / "replica")
        await scrubbed(made.replica)
        await until(lambda: "it has another record at offset" in caplog.text)
        assert log_of(tmp_path / "replica") == before


async def test_records_are_sent_in_pieces_and_only_if_they_are_good(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        first, second = made.stored[:2]
        content = log_of(tmp_path / "master")
        for size, end in ((1, first.size), (first.size + 1, first.size), (0, first.size)):
            answer = await made.replica.ask(RequestCode.GET_LOG_RECORDS, offset=0, size=size)
            assert answer.content == content[:end]
        many = await made.replica.ask(RequestCode.GET_LOG_RECORDS, offset=0, size=2**31 - 1)
        assert many.content == content[: len(many.content)] and len(many.content) > 2000
        for offset in (-1, 1, 10**9):
            answer = await made.replica.ask(RequestCode.GET_LOG_RECORDS, offset=offset, size=1)
            assert (answer.code, answer.content) == (ResponseCode.SYSTEM_ERROR, b"")
        made.flip("replica", second, 100)
        answer = await made.replica.ask(
            RequestCode.GET_LOG_RECORDS, offset=second.physical_offset, size=1
        )
        assert (answer.code, answer.content) == (ResponseCode.SYSTEM_ERROR, b"")
