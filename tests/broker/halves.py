"""Helpers that send and end half messages."""

import asyncio

from tests.broker.brokers import Talk

from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

PROPERTIES = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
IMPATIENT = BrokerConfig(transaction_timeout_ms=1, transaction_check_max=2)


async def begin(talk: Talk) -> RemotingCommand:
    return await talk.send("T1", b"body", e=2, f=4, i=PROPERTIES)


async def ended(
    talk: Talk, half: RemotingCommand, decision: int, group: str = "PG"
) -> RemotingCommand:
    answer = await talk.ask(
        RequestCode.END_TRANSACTION,
        producerGroup=group,
        tranStateTableOffset=half.fields["queueOffset"],
        commitLogOffset=decode_message_id(half.fields["msgId"]).physical_offset,
        commitOrRollback=decision,
    )
    await asyncio.to_thread(talk.broker.store.wait_dispatched)
    return answer


async def end(talk: Talk, half: RemotingCommand, decision: int, group: str = "PG") -> int:
    return (await ended(talk, half, decision, group)).code


def half_answer(queue_offset: int, message_id: str) -> RemotingCommand:
    return RemotingCommand(0, {"queueOffset": str(queue_offset), "msgId": message_id})


def stored(talk: Talk, topic: str, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in talk.broker.store.read(topic, queue_id)]
