"""Comparisons of a master's log with a replica's, all of them without a network."""

import asyncio
import struct
from dataclasses import dataclass, field

import pytest

from firetrail.errors import (
    DivergedError,
    NotReachedError,
    ReplicationError,
    RequestError,
    StuckError,
)
from firetrail.format.layout import BLANK, MAGIC_BLANK
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import KVTable
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.replica import master_check
from firetrail.replication.replica.master_check import (
    LogRange,
    Master,
    MasterAddress,
    check_history,
    check_range,
)
from firetrail.store.log_copy import LastRecord

FILE_SIZE = 1000
RECORD = b"record" * 10
JAVA_BLANK = BLANK.struct.pack(140, MAGIC_BLANK) + bytes(132)


@dataclass
class OwnLog:
    """A replica's log, which by default has one record at the end."""

    max_offset: int = 860
    last: LastRecord | None = field(default_factory=lambda: LastRecord(800, RECORD))
    is_empty: bool = False
    file_size: int = FILE_SIZE

    def last_record(self) -> LastRecord | None:
        return self.last


class AnsweringClient(RemotingClient):
    """Answers as a master with these records would."""

    def __init__(self, first: int, end: int, records: dict[int, bytes]) -> None:
        super().__init__()
        self._table = {"commitLogMinOffset": str(first), "commitLogMaxOffset": str(end)}
        self._records = records
        self.config = ""
        self.refusal: RequestError | None = None

    async def ask(
        self, address: str, command: RemotingCommand, timeout_s: float = 0
    ) -> RemotingCommand:
        if self.refusal is not None:
            raise self.refusal
        if command.code == RequestCode.GET_BROKER_CONFIG:
            return command.answer(body=self.config.encode())
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            return command.answer(body=KVTable(self._table).encode())
        offset = int(command.fields["offset"])
        if offset not in self._records:
            remark = f"127.0.0.1:1: can not find message by the offset, {offset}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        return command.answer(body=self._records[offset])


def master(first: int, end: int, records: dict[int, bytes] | None = None) -> Master:
    return Master(AnsweringClient(first, end, records or {}), MasterAddress("127.0.0.1:1"))


async def test_the_same_last_record_is_followed() -> None:
    found = await check_history(OwnLog(), master(0, 2000, {800: RECORD}))
    assert found == (860, LogRange(0, 2000))


async def test_an_empty_replica_begins_where_the_master_does() -> None:
    empty = OwnLog(0, None, is_empty=True)
    assert (await check_history(empty, master(3000, 9000))).begin == 3000
    assert (await check_history(empty, master(-1, 0))).begin == 0  # a Java master without a log


async def test_a_file_without_records_is_filled() -> None:
    assert (await check_history(OwnLog(1000, None), master(1000, 2000))).begin == 1000


@pytest.mark.parametrize("there", [{}, {800: RECORD[:-1]}, {800: RECORD + b"x"}, {800: b""}])
async def test_another_last_record_is_not_followed(there: dict[int, bytes]) -> None:
    with pytest.raises(DivergedError, match=r"their records at offset 800 differ.*rewind STORE"):
        await check_history(OwnLog(), master(0, 2000, there))


async def test_a_shorter_master_is_not_followed() -> None:
    with pytest.raises(DivergedError, match="up to 860, the master only up to 859"):
        await check_history(OwnLog(), master(0, 859, {800: RECORD}))


@pytest.mark.parametrize(
    "at_end", [{}, {860: JAVA_BLANK}], ids=["as Firetrail answers", "as Java answers"]
)
async def test_a_file_that_both_have_ended_is_followed(at_end: dict[int, bytes]) -> None:
    own = OwnLog(max_offset=1000)
    found = await check_history(own, master(0, 2000, {800: RECORD} | at_end))
    assert found.begin == 1000


@pytest.mark.parametrize("at_end", [RECORD, b"", b"123"])
async def test_a_file_that_only_the_replica_has_ended_is_not_followed(at_end: bytes) -> None:
    own = OwnLog(max_offset=1000)
    with pytest.raises(DivergedError, match="the replica's file ends at offset 860"):
        await check_history(own, master(0, 2000, {800: RECORD, 860: at_end}))


async def test_a_replica_whose_place_was_deleted_is_stuck() -> None:
    with pytest.raises(StuckError, match=r"up to 860, .* before 1000: 140 bytes cannot be copied"):
        await check_history(OwnLog(), master(1000, 2000))
    with pytest.raises(StuckError, match=r"last record is at offset 800, .* before 1000"):
        await check_history(OwnLog(max_offset=1000), master(1000, 2000))
    check_range(OwnLog(max_offset=1000), LogRange(1000, 2000))


async def test_java_fails_if_the_offset_is_in_the_middle_of_a_record() -> None:
    client = AnsweringClient(0, 2000, {})
    remark = "127.0.0.1:1: java.lang.IllegalArgumentException: newLimit < 0: (-1558141110 < 0)"
    client.refusal = RequestError(ResponseCode.SYSTEM_ERROR, remark)
    assert await Master(client, MasterAddress("127.0.0.1:1")).record(0) is None


async def test_java_fails_to_tell_its_figures_right_after_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(master_check, "RANGE_PAUSE_S", 0.05)
    client = AnsweringClient(0, 2000, {})
    remark = "127.0.0.1:1: java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast"
    client.refusal = RequestError(ResponseCode.SYSTEM_ERROR, remark)
    asking = asyncio.ensure_future(Master(client, MasterAddress("127.0.0.1:1")).log_range())
    await asyncio.sleep(0)
    client.refusal = None
    assert await asking == (0, 2000)
    client.refusal = RequestError(ResponseCode.SYSTEM_ERROR, remark)
    with pytest.raises(ReplicationError, match="NoSuchElementException"):
        await Master(client, MasterAddress("127.0.0.1:1")).log_range()


async def test_java_sends_too_much_if_the_offset_is_in_the_middle_of_a_record() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(struct.pack(">iI", 700 << 20, 10) + bytes(1000))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = RemotingClient()
    try:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await Master(client, MasterAddress(address)).record(7) is None
    finally:
        await client.close()
        server.close()
    with pytest.raises(NotReachedError, match="does not answer"):
        await Master(RemotingClient(), MasterAddress(address)).record(7)


async def test_a_refusal_other_than_not_found_is_not_taken_for_a_difference() -> None:
    client = AnsweringClient(0, 2000, {})
    remark = (
        "127.0.0.1:1: org.apache.rocketmq.acl.common.AclException: no key, org.apache.rocketmq"
        ".acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:523)"
    )
    client.refusal = RequestError(ResponseCode.SYSTEM_ERROR, remark)
    with pytest.raises(ReplicationError, match=r"33 VIEW_MESSAGE_BY_ID .*AclException") as caught:
        await Master(client, MasterAddress("127.0.0.1:1")).record(0)
    assert not isinstance(caught.value, DivergedError)


@pytest.mark.parametrize(
    ("code", "remark", "is_access"),
    [
        (ResponseCode.NO_PERMISSION, "username cannot be null.", True),
        (ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: no key", True),
        (ResponseCode.SYSTEM_BUSY, "too many requests", False),
    ],
)
async def test_a_refusal_by_access_control_names_the_remedy(
    code: ResponseCode, remark: str, is_access: bool
) -> None:
    client = AnsweringClient(0, 2000, {})
    client.refusal = RequestError(code, remark)
    with pytest.raises(ReplicationError, match=r"refuses request 26 GET_BROKER_CONFIG") as caught:
        await Master(client, MasterAddress("127.0.0.1:1")).settings()
    assert ("set innerClientAuthenticationCredentials" in str(caught.value)) is is_access


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("brokerRole=ASYNC_MASTER", "does not report its mappedFileSizeCommitLog"),
        ("brokerRole=slave\nmappedFileSizeCommitLog=1", "is a slave itself"),
        ("mappedFileSizeCommitLog=1\nhaListenPort=x", "does not report its haListenPort"),
    ],
)
async def test_settings_that_do_not_suffice(config: str, error: str) -> None:
    client = AnsweringClient(0, 0, {})
    client.config = config
    with pytest.raises(ReplicationError, match=error):
        await Master(client, MasterAddress("127.0.0.1:1")).config()


@pytest.mark.parametrize(
    ("config", "ha"),
    [
        ("", ""),
        ("haListenPort=10912", "127.0.0.1:10912"),
        ("haListenPort=10912\nbrokerIP2=10.0.0.1", "10.0.0.1:10912"),
        ("haListenPort=10912\nbrokerIP2=fe80::1", "[fe80::1]:10912"),
    ],
)
async def test_the_ha_address_of_the_settings(config: str, ha: str) -> None:
    client = AnsweringClient(0, 0, {})
    client.config = f"mappedFileSizeCommitLog=1\n{config}"
    assert (await Master(client, MasterAddress("127.0.0.1:1")).config()).ha == ha
    fixed = MasterAddress("127.0.0.1:1", "10.0.0.9:9")
    assert (await Master(client, fixed).config()).ha == "10.0.0.9:9"
