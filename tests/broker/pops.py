"""Helpers that pop and acknowledge messages."""

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

from tests.broker.brokers import Field, Fields, Talk, records

from firetrail.format.properties import POP_CK
from firetrail.format.record import Record
from firetrail.remoting.messages.pop.pop_headers import PopResponse
from firetrail.remoting.messages.pop.receipts import NORMAL, Receipt, decode_places
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import Clock

MINUTE_MS = 60_000


class StoppedClock(Clock):
    """A clock whose wall time is frozen, so that no invisible time ends before the test says so.

    Monotonic time runs.
    """

    def __init__(self) -> None:
        self._now_ns = time.time_ns()

    def time_ns(self) -> int:
        return self._now_ns

    def advance(self, ms: int) -> None:
        """Let wall time pass."""
        self._now_ns += ms * 1_000_000


class Popped(NamedTuple):
    """A message and its receipt."""

    record: Record
    receipt: Receipt

    @property
    def body(self) -> bytes:
        return self.record.body


async def fill(talk: Talk, topic: str, *bodies: bytes, **changes: Field) -> None:
    for body in bodies:
        assert (await talk.send(topic, body, changes)).code == 0
    await asyncio.to_thread(talk.broker.store.wait_dispatched)


async def ask_pop(
    talk: Talk, changes: Mapping[str, Field] | None = None, **more: Field
) -> RemotingCommand:
    """POP_MESSAGE."""
    fields: Fields = {
        "consumerGroup": "CG",
        "topic": "T1",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
    }
    return await talk.ask(RequestCode.POP_MESSAGE, {**fields, **(changes or {}), **more})


def popped(answer: RemotingCommand) -> list[Popped]:
    """Return the messages of an answer, with the receipts that a client creates for them."""
    if answer.code:
        return []
    header = PopResponse.decode(answer.fields)
    starts = decode_places(header.start_offset_info)
    places = decode_places(header.msg_offset_info)
    found = []
    for record in records(answer.content):
        checkpoint = record.properties.get(POP_CK)
        if checkpoint is None:
            assert record.queue_offset in places[NORMAL, record.queue_id]
            receipt = Receipt(
                starts[NORMAL, record.queue_id][0],
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                NORMAL,
                "broker-a",
                record.queue_id,
                record.queue_offset,
            )
        else:
            receipt = Receipt.decode(checkpoint)
            assert receipt.offset in places[receipt.retry, receipt.queue_id]
        found.append(Popped(record, receipt))
    return found


async def pop(
    talk: Talk, changes: Mapping[str, Field] | None = None, **more: Field
) -> list[Popped]:
    """The messages of a pop."""
    return popped(await ask_pop(talk, changes, **more))


def request_fields(message: Popped, topic: str = "T1", group: str = "CG") -> Fields:
    receipt = message.receipt
    return {
        "consumerGroup": group,
        "topic": receipt.topic(topic, group),
        "queueId": receipt.queue_id,
        "offset": receipt.offset,
        "extraInfo": receipt.encode(),
    }


async def ack(
    talk: Talk, message: Popped, changes: Mapping[str, Field] | None = None, **more: Field
) -> RemotingCommand:
    return await talk.ask(
        RequestCode.ACK_MESSAGE, {**request_fields(message), **(changes or {}), **more}
    )


async def change(
    talk: Talk, message: Popped, invisible_ms: int, **changes: Field
) -> RemotingCommand:
    fields = request_fields(message) | {"invisibleTime": invisible_ms} | changes
    return await talk.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
