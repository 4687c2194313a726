"""Replies reach the producer that sent the request."""

from tests.broker.brokers import Talk, talking

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

TOPIC = "DefaultCluster_REPLY_TOPIC"
TO_P1 = "CORRELATION_ID\x0142\x02REPLY_TO_CLIENT\x01p1\x02MSG_TYPE\x01reply\x02"


async def reply(talk: Talk, body: bytes, properties: str) -> RemotingCommand:
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    return await talk.send(TOPIC, body, code=code, c=TOPIC, i=properties)


async def test_a_reply_is_pushed_and_stored() -> None:
    pushed: list[RemotingCommand] = []

    def take(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        pushed.append(request)
        return request.answer()

    async with talking(client_handlers={RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take}) as talk:
        await talk.beat(producer="PG", client_id="p1")
        answer = await reply(talk, b"re", TO_P1)
        assert answer.code == 0
        (push,) = pushed
        assert push.content == b"re"
        assert push.fields["topic"] == TOPIC
        assert "CORRELATION_ID\x0142\x02" in push.fields["properties"]
        assert "PUSH_REPLY_TIME\x01" in push.fields["properties"]
        assert push.fields["storeHost"] == talk.broker.address
        assert [record.body for record in talk.broker.store.read(TOPIC)] == [b"re"]


async def test_a_reply_without_a_waiting_producer_is_refused(talk: Talk) -> None:
    gone = await reply(talk, b"re", TO_P1)
    assert gone.code == ResponseCode.SYSTEM_ERROR and "p1" in (gone.remark or "")
    aimless = await reply(talk, b"re", "")
    assert "REPLY_TO_CLIENT" in (aimless.remark or "")
