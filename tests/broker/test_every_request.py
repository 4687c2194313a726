"""No request breaks the broker: every one gets a deliberate answer.

Every request that the broker answers is sent with every field that is read, and every body, spoilt
in turn. An answer with any code will do, except for an unexpected error, which would be logged.
"""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import Talk, talking

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, answer_to
from firetrail.remoting.messages.bodies import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    LockBody,
    MessageQueue,
    QueryAssignmentBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
)
from firetrail.remoting.messages.pop.pop_bodies import BatchAck, BatchAckBody, RequestModeBody
from firetrail.remoting.messages.requests import REQUESTS
from firetrail.remoting.messages.typed_header import _plan
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.store import Store

Read = dict[int, set[str]]

GOOD = {
    "a": "PG",
    "b": "T1",
    "c": "TBW102",
    "clientID": "c1",
    "clientId": "c1",
    "consumerGroup": "CG",
    "defaultTopic": "TBW102",
    "e": "0",
    "exp": "*",
    "expType": "TAG",
    "expressionType": "TAG",
    "extraInfo": "0 1 60000 0 0 broker-a 0 0",
    "f": "0",
    "group": "CG",
    "i": "",
    "key": "k1",
    "m": "false",
    "msgId": "00" * 16,
    "offset": "0",
    "order": "false",
    "perm": "6",
    "producerGroup": "PG",
    "queueId": "0",
    "queueOffset": "0",
    "statsKey": "T1",
    "statsName": "TOPIC_PUT_NUMS",
    "subscription": "*",
    "sysFlag": "4",
    "topic": "T1",
}
"""Field values with which most requests succeed; all other fields are 1."""
BAD = (
    "",
    "x",
    "-2",
    str(2**31 - 1),
    str(-(2**63)),
    str(2**63),
    "9" * 5000,
    "../../x",
    "\ud800\x01",
)
BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b"\xff\xfe",
    b"1" * 5000,
    b"\0" * 100,
    b"\x78\x9c" + b"\0" * 20,
)
_QUEUE = MessageQueue("T1", "broker-a", 0)
_WANTED = SubscriptionData("T1", "A")
GOOD_BODIES = {
    RequestCode.HEART_BEAT: HeartbeatData(
        "c1", [], [ConsumerData("CG", subscription_data_set=[_WANTED])]
    ),
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientBody("c1", "CG", _WANTED),
    RequestCode.LOCK_BATCH_MQ: LockBody("CG", "c1", [_QUEUE]),
    RequestCode.UNLOCK_BATCH_MQ: LockBody("CG", "c1", [_QUEUE]),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig("CG"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: SubscriptionGroupList(
        [SubscriptionGroupConfig("CG")]
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: TopicConfigList([TopicConfig("T2")]),
    RequestCode.QUERY_ASSIGNMENT: QueryAssignmentBody("T1", "CG", "c1", "AVG"),
    RequestCode.SET_MESSAGE_REQUEST_MODE: RequestModeBody("T1", "CG"),
    RequestCode.BATCH_ACK_MESSAGE: BatchAckBody(
        "broker-a", [BatchAck("CG", "T1", 0, 0, 0, 1, 1, "AQ==")]
    ),
}
CHANGE_ROLES = {
    RequestCode.PROMOTE_REPLICA,
    RequestCode.HAND_OVER,
    RequestCode.STEP_DOWN,
    RequestCode.RECOVER_GROUP,
}
"""Requests whose fields would have to be those of a replica."""
BAD_VALUES: tuple[object, ...] = (
    None,
    "",
    "x" * 300,
    "a/b",
    -1,
    2**31,
    2**63,
    1.5,
    True,
    [],
    {},
    [[]],
    {"a": {}},
)


def header_names() -> list[str]:
    return sorted({field.wire for row in REQUESTS.values() for field in _plan(row.header)})


NAMES = header_names()
ALL_GOOD = dict.fromkeys(NAMES, "1") | GOOD


def spoilt(value: Any) -> Iterator[Any]:
    """Yield the value with one part replaced, in all ways."""
    yield from BAD_VALUES
    if isinstance(value, dict):
        for name, item in value.items():
            yield from (value | {name: other} for other in spoilt(item))
    elif isinstance(value, list) and value:
        yield from ([other, *value[1:]] for other in spoilt(value[0]))


@contextmanager
def nothing_unforeseen() -> Iterator[None]:
    """Fail if a handler has raised an unexpected error."""
    found: list[str] = []

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                found.append(self.format(record))

    handler = Listen()
    logging.getLogger("firetrail").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("firetrail").removeHandler(handler)
    assert not found, found[0]


async def ask_all(
    talk: Talk, code: int, asked: Iterable[tuple[dict[str, str], bytes]], address: str | None = None
) -> None:
    await asyncio.gather(
        *(
            talk.client.request(
                address or talk.broker.address, RemotingCommand(code, fields, body), 15
            )
            for fields, body in asked
        )
    )


class Noting(dict[str, str]):
    """The fields of a request, which note the names that a handler looks up."""

    def __init__(self, fields: Mapping[str, str], read: set[str]) -> None:
        super().__init__(fields)
        self._read = read

    def get(self, name: str, *default: Any) -> Any:
        self._read.add(name)
        return super().get(name, *default)

    def __getitem__(self, name: str) -> str:
        self._read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._read.add(str(name))
        return super().__contains__(name)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The names of the fields that were read of requests, by code."""
    noted: Read = defaultdict(set)
    original = RemotingServer._answer

    def answer(self: RemotingServer, connection: Connection, request: RemotingCommand) -> Answer:
        request.fields = Noting(request.fields, noted[request.code])
        return original(self, connection, request)

    monkeypatch.setattr(RemotingServer, "_answer", answer)
    return noted


async def spoil_fields(talk: Talk, code: int, read: Read, address: str | None = None) -> None:
    """Ask with each field spoilt that a handler reads; it cannot notice any other.

    Messages are sent until all is answered: some requests would wait for minutes for one.
    """
    done: set[str] = set()
    await ask_all(talk, code, [(ALL_GOOD | {"pollTime": "0"}, b"")], address)
    while names := sorted(read[code].intersection(NAMES) - done):
        asked = ((ALL_GOOD | {name: bad}, b"") for name in names for bad in BAD)
        answered = asyncio.ensure_future(ask_all(talk, code, asked, address))
        while not (await asyncio.wait([answered], timeout=0.5))[0]:
            assert (await talk.send("T1")).code == 0
        await answered
        done.update(names)


async def is_alive(talk: Talk) -> None:
    assert (await talk.send("Alive")).code == 0
    assert (await talk.pull_until("Alive", 1))[0].body == b"hello"


class TestEveryRequest:
    async def test_every_spoilt_field_is_answered(self, tmp_path: Path, read: Read) -> None:
        with nothing_unforeseen():
            async with talking(tmp_path / "store") as talk:
                await talk.send("T1")
                await talk.beat()
                for code in sorted(talk.broker.answered_codes[0]):
                    await spoil_fields(talk, code, read)
                await is_alive(talk)
                assert len(read[RequestCode.SEND_MESSAGE_V2]) > 10
        Store.open(tmp_path / "store").close()  # and it can be opened again
        assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]

    async def test_every_spoilt_body_is_answered(self) -> None:
        with nothing_unforeseen():
            async with talking() as talk:
                await talk.send("T1")
                for code in sorted(talk.broker.answered_codes[0]):
                    for fields in (ALL_GOOD, {}):
                        await ask_all(talk, code, ((fields, body) for body in BODIES))
                await is_alive(talk)

    async def test_every_spoilt_member_of_a_body_is_answered(self) -> None:
        with nothing_unforeseen():
            async with talking() as talk:
                for code, body in GOOD_BODIES.items():
                    bodies = [json.dumps(value).encode() for value in spoilt(body.to_json())]
                    await ask_all(talk, code, ((ALL_GOOD, body) for body in bodies))
                await is_alive(talk)

    async def test_a_name_server_answers_every_spoilt_field_and_body(self, read: Read) -> None:
        with nothing_unforeseen():
            async with talking() as talk:
                address = talk.broker.namesrv
                for code in sorted(talk.broker.answered_codes[1]):
                    for fields in (ALL_GOOD, {}):
                        await ask_all(talk, code, ((fields, body) for body in BODIES), address)
                    await spoil_fields(talk, code, read, address)
                await is_alive(talk)

    def test_an_unexpected_error_fails_these_tests(self) -> None:
        def broken(connection: Any, request: RemotingCommand) -> RemotingCommand:
            raise KeyError("bug")

        with pytest.raises(AssertionError, match="SEND_MESSAGE failed"), nothing_unforeseen():
            answer_to({10: broken}, None, RemotingCommand(10))  # type: ignore[arg-type]
