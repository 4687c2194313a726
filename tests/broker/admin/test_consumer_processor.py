"""Administration of consumers: resets and clones of offsets, and requests they answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from tests.broker.admin.test_topic_group_processor import commit, sent
from tests.broker.brokers import SUBSCRIPTION, SUSPEND, Field, Fields, Talk, records, talking
from tests.broker.pops import pop

from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.admin.admin_bodies import (
    ConsumerRunningInfo,
    DirectlyConsumed,
    ResetOffsetList,
    ResetOffsets,
)
from firetrail.remoting.messages.bodies import MessageModel
from firetrail.remoting.wire.codes import Language, PullFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

RESET: Fields = {"topic": "T1", "group": "CG", "timestamp": 0, "isForce": True}
T = TypeVar("T")


async def held(talk: Talk, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Send a pull or pop that finds nothing; return it once the broker holds it."""
    task = asyncio.create_task(request)
    while not talk.broker._parts.state.long_polling._held:
        await asyncio.sleep(0.01)
    return task


def waiting_pull(talk: Talk, offset: int) -> Coroutine[Any, Any, RemotingCommand]:
    """Return a pull that waits at the end of the queue."""
    return talk.pull("T1", offset, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=600_000)


class TestResets:
    async def reset(self, talk: Talk, **changes: Field) -> dict[int, int]:
        fields = RESET | changes
        answer = await talk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        table = ResetOffsets.decode(answer.content).offset_table
        return {queue.queue_id: offset for queue, offset in table.items()}

    async def test_offsets_are_reset_to_a_time(self, talk: Talk) -> None:
        await sent(talk, 3)
        await commit(talk, 2)
        assert (await self.reset(talk))[0] == 0
        assert talk.broker.offsets.get("CG", "T1", 0) == 0
        assert (await self.reset(talk, timestamp=-1))[0] == 3
        assert (await self.reset(talk, timestamp=-1, isForce=False))[0] == 3
        await commit(talk, 1)
        assert (await self.reset(talk, timestamp=-1, isForce=False))[0] == 1
        assert await self.reset(talk, queueId=0, offset=2) == {0: 2}

    @pytest.mark.parametrize(
        ("changes", "code", "remark"),
        [
            ({"topic": "T9"}, ResponseCode.TOPIC_NOT_EXIST, "topic[T9] not exist"),
            ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group none does not"),
            ({"queueId": 9}, ResponseCode.SYSTEM_ERROR, "topic T1 has no queue 9, only 4 queues"),
            (
                {"queueId": 0, "offset": 4},
                ResponseCode.SYSTEM_ERROR,
                "offset 4 not in consume queue",
            ),
        ],
    )
    async def test_invalid_resets_are_refused(
        self, talk: Talk, changes: Fields, code: int, remark: str
    ) -> None:
        await sent(talk, 3)
        await commit(talk, 2)
        fields = RESET | changes
        answer = await talk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert talk.broker.offsets.get("CG", "T1", 0) == 2
        assert not talk.broker.offsets.of_group("none")

    async def test_a_pushed_reset_has_the_format_of_the_language(self) -> None:
        notified: list[RemotingCommand] = []

        def take(connection: Connection, request: RemotingCommand) -> None:
            notified.append(request)

        pushed = BrokerConfig(server_side_reset=False)
        handlers: dict[int, Handler] = {RequestCode.RESET_CONSUMER_CLIENT_OFFSET: take}
        async with talking(config=pushed, client_handlers=handlers) as talk:
            await sent(talk, 1)
            await talk.beat("CG", "java", {"T1": "*"})
            await self.reset(talk)
            other = RemotingClient({RequestCode.RESET_CONSUMER_CLIENT_OFFSET: take})
            body = b'{"clientID":"go","consumerDataSet":[{"groupName":"CG"}]}'
            beat = RemotingCommand(RequestCode.HEART_BEAT, {}, body, language=Language.GO)
            await other.request(talk.broker.address, beat)
            await self.reset(talk)
            while len(notified) < 3:
                await asyncio.sleep(0.01)
            bodies = [request.content for request in notified]
            assert sum(b'"offsetTable":[' in body for body in bodies) == 1
            flat = next(body for body in bodies if b'"offsetTable":[' in body)
            assert ResetOffsetList.decode(flat).offset_table[0].topic == "T1"
            await other.close()

    async def test_the_next_pull_announces_a_reset(self) -> None:
        """As in RocketMQ 5.3, nothing is pushed to consumers, however often offsets are reset."""

        def take(connection: Connection, request: RemotingCommand) -> None:
            pytest.fail("the consumer was notified")

        async with talking(
            client_handlers={RequestCode.RESET_CONSUMER_CLIENT_OFFSET: take}
        ) as talk:
            await sent(talk, 3)
            await talk.beat("CG", "c1", {"T1": "*"})
            await commit(talk, 3)
            await self.reset(talk, queueId=0, offset=2)
            await self.reset(talk, queueId=0, offset=1)
            await commit(talk, 3)  # by a consumer that does not know of the reset yet
            assert talk.broker.offsets.get("CG", "T1", 0) == 1
            answer = await talk.pull("T1", 3)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert (answer.remark, answer.fields["nextBeginOffset"]) == ("OFFSET_RESET", "1")
            assert [r.body for r in records((await talk.pull("T1", 1)).content)] == [b"1", b"2"]
            await commit(talk, 2)
            assert talk.broker.offsets.get("CG", "T1", 0) == 2
            flags = int(PullFlag.SUBSCRIPTION | PullFlag.COMMIT)
            await talk.pull("T1", 3, sysFlag=flags, commitOffset=3)
            assert talk.broker.offsets.get("CG", "T1", 0) == 3

    async def test_a_waiting_pull_announces_a_reset_at_once(self, talk: Talk) -> None:
        await sent(talk, 1)
        await talk.beat("CG", "c1", {"T1": "*"})
        waits = await held(talk, waiting_pull(talk, 1))
        await self.reset(talk)
        assert (await waits).fields["nextBeginOffset"] == "0"

    async def test_a_consumer_that_has_prefetched_all_messages_skips_them(self, talk: Talk) -> None:
        """It waits at the end of the queue, which is the new offset, with nothing consumed."""
        await sent(talk, 3)
        await talk.beat("CG", "c1", {"T1": "*"})
        waits = await held(talk, waiting_pull(talk, 3))
        await commit(talk, 0)
        await self.reset(talk, timestamp=-1)
        answer = await waits
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert (answer.remark, answer.fields["nextBeginOffset"]) == ("OFFSET_RESET", "3")
        assert talk.broker.offsets.get("CG", "T1", 0) == 3

    async def test_a_pull_from_the_new_offset_announces_the_reset(self, talk: Talk) -> None:
        await sent(talk, 3)
        await talk.beat("CG", "c1", {"T1": "*"})
        await self.reset(talk, timestamp=-1)
        await commit(talk, 0)  # the client holds messages 0 to 2 and does not know of the reset
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.COMMIT)
        answer = await talk.pull("T1", 3, sysFlag=flags, commitOffset=0)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.fields["nextBeginOffset"] == "3"
        assert talk.broker.offsets.get("CG", "T1", 0) == 3
        await commit(talk, 3)
        assert (await talk.pull("T1", 3)).code == ResponseCode.PULL_NOT_FOUND

    async def test_a_waiting_pop_gets_messages_from_the_new_offset(self, talk: Talk) -> None:
        await sent(talk, 1)
        await talk.beat("CG", "c1", {"T1": "*"})
        await commit(talk, 1)
        waits = await held(talk, pop(talk, pollTime=600_000))
        await self.reset(talk)
        assert [message.body for message in await waits] == [b"0"]

    async def test_a_reset_is_pushed_to_broadcast_members(self) -> None:
        notified = asyncio.Event()

        def take(connection: Connection, request: RemotingCommand) -> None:
            notified.set()

        async with talking(
            client_handlers={RequestCode.RESET_CONSUMER_CLIENT_OFFSET: take}
        ) as talk:
            await sent(talk, 1)
            await talk.beat("CG", "c1", message_model=MessageModel.BROADCASTING)
            await self.reset(talk)
            await notified.wait()

    async def test_offsets_are_cloned_to_another_group(self, talk: Talk) -> None:
        await sent(talk, 2)
        await commit(talk, 2)
        await talk.beat("G2", "c2")
        await talk.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="CG", destGroup="G2")
        assert talk.broker.offsets.get("G2", "T1", 0) == 2


async def test_offsets_are_not_cloned_to_a_missing_group(talk: Talk) -> None:
    await sent(talk, 2)
    await commit(talk, 2)
    answer = await talk.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="CG", destGroup="G2")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer.remark == "Group G2 does not exist"
    assert not talk.broker.offsets.of_group("G2")


async def test_requests_are_forwarded_to_a_consumer() -> None:
    def info(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=ConsumerRunningInfo({"PROP": "x"}).encode())

    def consume(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        assert [record.body for record in records(request.content)] == [b"0"]
        return request.answer(body=DirectlyConsumed("CR_SUCCESS").encode())

    handlers: dict[int, Handler] = {
        RequestCode.GET_CONSUMER_RUNNING_INFO: info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: consume,
    }
    async with talking(client_handlers=handlers) as talk:
        (answer,) = await sent(talk, 1)
        who: Fields = {"consumerGroup": "CG", "clientId": "c1"}
        offline = await talk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, who)
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        await talk.beat("CG", "c1")
        running_info = await talk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, who)
        assert ConsumerRunningInfo.decode(running_info.content).properties == {"PROP": "x"}
        done = await talk.ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, who, msgId=answer.fields["msgId"]
        )
        assert DirectlyConsumed.decode(done.content).consume_result == "CR_SUCCESS"


@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY]
)
async def test_a_consumer_that_leaves_instead_of_answering_is_reported_as_offline(
    code: RequestCode, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[RemotingCommand] = []

    def leave(connection: Connection, request: RemotingCommand) -> None:
        asked.append(request)
        connection.abort()

    async with talking() as talk:
        (stored,) = await sent(talk, 1)
        consumer = RemotingClient({code: leave})
        await talk.beat("CG", "c1", client=consumer)
        secrets: Fields = {"AccessKey": "admin", "Signature": "signed", "SecurityToken": "token"}
        who: Fields = {"consumerGroup": "CG", "clientId": "c1", "msgId": stored.fields["msgId"]}
        answer = await talk.ask(code, who | secrets)
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert answer.remark == "the consumer <c1> not online: it disconnected before it answered"
        assert asked[0].fields["consumerGroup"] == "CG"
        assert not asked[0].fields.keys() & secrets
        await consumer.close()
    assert "Traceback" not in caplog.text
