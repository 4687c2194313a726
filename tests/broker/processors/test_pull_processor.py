"""Pulls: returned messages, next offsets, and waiting pulls."""

import asyncio
import math

import pytest
from tests.broker.brokers import SMALL, SUBSCRIPTION, SUSPEND, Talk, records, talking
from tests.client.clusters import until
from tests.helpers import ManualClock

from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.admission.fence import LeaseFence
from firetrail.store.settings.store_config import BrokerRole

WAITING = SUSPEND | SUBSCRIPTION


def tagged(tag: str) -> str:
    return f"TAGS\x01{tag}\x02"


async def send(talk: Talk, *tags: str) -> None:
    for n, tag in enumerate(tags):
        assert (await talk.send("T1", b"%d" % n, i=tagged(tag))).code == 0
    await asyncio.to_thread(talk.broker.store.wait_dispatched)


def place(answer: RemotingCommand) -> tuple[int, int, int]:
    """Return the next, smallest and largest offset."""
    return tuple(  # type: ignore[return-value]
        int(answer.fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset")
    )


async def test_a_pull_returns_messages_as_they_are_stored(talk: Talk) -> None:
    await send(talk, "A", "B", "A")
    answer = await talk.pull("T1")
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert [record.body for record in records(answer.content)] == [b"0", b"1", b"2"]
    assert place(answer) == (3, 0, 3)
    assert answer.fields["suggestWhichBrokerId"] == "0"
    assert len(records((await talk.pull("T1", maxMsgNums=2)).content)) == 2
    assert [record.body for record in records((await talk.pull("T1", 2)).content)] == [b"2"]


class TestLightQueues:
    LIGHT = "INNER_MULTI_DISPATCH\x01%LMQ%a\x02"

    async def test_a_light_queue_is_pulled_like_a_topic(self) -> None:
        async with talking(store=SMALL.replace(light_queues=True)) as talk:
            waiting = asyncio.create_task(talk.pull("%LMQ%a", 0, sysFlag=WAITING))
            assert (await talk.send("T1", b"1", i=self.LIGHT)).code == 0
            assert [record.body for record in records((await waiting).content)] == [b"1"]
            assert (await talk.send("T1", b"2", i=self.LIGHT)).code == 0
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            answer = await talk.pull("%LMQ%a", 1)
            assert [record.body for record in records(answer.content)] == [b"2"]
            assert place(answer) == (2, 0, 2)
            assert "%LMQ%a" not in talk.broker.topics.names()
            assert (await talk.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
            assert "%LMQ%a" in talk.broker.store.topics()

    async def test_light_queues_need_the_setting(self, talk: Talk) -> None:
        assert (await talk.send("T1", b"1", i=self.LIGHT)).code == 0
        answer = await talk.pull("%LMQ%a")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


class TestFilters:
    async def test_pulls_filter_by_tags(self, talk: Talk) -> None:
        await send(talk, "A", "B", "C", "A")
        answer = await talk.pull("T1", subscription="A || C")
        assert [record.tags for record in records(answer.content)] == ["A", "C", "A"]
        nothing = await talk.pull("T1", subscription="D")
        assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert place(nothing) == (4, 0, 4)

    async def test_pulls_filter_by_properties(self, talk: Talk) -> None:
        for n in range(5):
            await talk.send("T1", b"%d" % n, i=f"n\x01{n}\x02")
        await asyncio.to_thread(talk.broker.store.wait_dispatched)
        answer = await talk.pull("T1", subscription="n > 1 AND n <> 3", expressionType="SQL92")
        assert [record.body for record in records(answer.content)] == [b"2", b"4"]
        assert place(answer) == (5, 0, 5)
        nothing = await talk.pull("T1", subscription="n > 9", expressionType="SQL92")
        assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        wrong = await talk.pull("T1", subscription="n >", expressionType="SQL92")
        assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    async def test_one_pull_examines_a_limited_number_of_messages(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The limit holds for any requested count, because other requests are waiting."""
        monkeypatch.setattr("firetrail.broker.filter.message_selector.SCANNED_MAX", 20)
        async with talking() as talk:
            for _ in range(100):
                await talk.send("T1", bytes(10_000))
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            nothing = await talk.pull(
                "T1", maxMsgNums=2**31 - 1, subscription="n > 9", expressionType="SQL92"
            )
            assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert int(nothing.fields["nextBeginOffset"]) < 100

    async def test_a_costly_filter_examines_fewer_messages(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("firetrail.broker.filter.message_selector.COST_MAX", 50)
        for _ in range(30):
            await talk.send("T1", bytes(1_000))
        await asyncio.to_thread(talk.broker.store.wait_dispatched)
        ends = []
        for terms in (1, 10):
            text = " OR ".join(["n > 9"] * terms)
            answer = await talk.pull("T1", maxMsgNums=2, subscription=text, expressionType="SQL92")
            ends.append(int(answer.fields["nextBeginOffset"]))
        assert ends[0] == 30
        assert ends[1] < 10

    async def test_the_subscription_of_the_heartbeat_is_used(self, talk: Talk) -> None:
        await send(talk, "A", "B")
        unknown = await talk.pull("T1", sysFlag=0)
        assert unknown.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await talk.beat("CG", subscriptions={"T1": "B"})
        answer = await talk.pull("T1", sysFlag=0, subscription="")
        assert [record.tags for record in records(answer.content)] == ["B"]
        other = await talk.pull("BenchmarkTest", sysFlag=0)
        assert other.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        newer = await talk.pull("T1", sysFlag=0, subVersion=9)
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


class TestOffsetsOutside:
    @pytest.mark.parametrize(
        ("offset", "code", "goes_on_at"),
        [
            (2, ResponseCode.PULL_NOT_FOUND, 2),
            (3, ResponseCode.PULL_OFFSET_MOVED, 2),
            (-1, ResponseCode.PULL_OFFSET_MOVED, 0),
        ],
    )
    async def test_offsets_outside_a_queue_are_corrected(
        self, talk: Talk, offset: int, code: int, goes_on_at: int
    ) -> None:
        await send(talk, "A", "A")
        answer = await talk.pull("T1", offset)
        assert (answer.code, place(answer)) == (code, (goes_on_at, 0, 2))

    async def test_offsets_in_an_empty_queue_are_corrected(self, talk: Talk) -> None:
        await send(talk, "A")
        first = await talk.pull("T1", 0, queueId=1)
        assert (first.code, place(first)) == (ResponseCode.PULL_NOT_FOUND, (0, 0, 0))
        later = await talk.pull("T1", 7, queueId=1)
        assert (later.code, place(later)) == (ResponseCode.PULL_OFFSET_MOVED, (0, 0, 0))


class TestRefusals:
    async def test_invalid_topics_groups_and_queues_are_refused(self, talk: Talk) -> None:
        await send(talk, "A")
        assert (await talk.pull("T2")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await talk.pull("T1", queueId=4)).code == ResponseCode.INVALID_PARAMETER
        assert (await talk.pull("T1", queueId=-1)).code == ResponseCode.INVALID_PARAMETER
        assert (await talk.pull("T1", consumerGroup="a/b")).code == ResponseCode.SYSTEM_ERROR
        talk.broker.groups.put([SubscriptionGroupConfig("CG", consume_enable=False)])
        assert (await talk.pull("T1")).code == ResponseCode.NO_PERMISSION

    async def test_pulls_without_permission_are_refused(self, talk: Talk) -> None:
        talk.broker.topics.put([TopicConfig("W", perm=2)])
        assert (await talk.pull("W")).code == ResponseCode.NO_PERMISSION

    async def test_unknown_groups_are_refused_without_auto_creation(self) -> None:
        async with talking(config=BrokerConfig(auto_create_groups=False)) as talk:
            answer = await talk.pull("BenchmarkTest")
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class TestWaiting:
    async def test_a_message_wakes_a_pull(self, talk: Talk) -> None:
        await send(talk, "A")
        pull = asyncio.create_task(talk.pull("T1", 1, sysFlag=WAITING))
        await asyncio.sleep(0.05)
        assert not pull.done()
        await talk.send("T1", b"news")
        answer = await pull
        assert [record.body for record in records(answer.content)] == [b"news"]
        assert place(answer) == (2, 0, 2)

    async def test_a_message_wakes_a_pull_of_an_empty_queue(self, talk: Talk) -> None:
        await send(talk, "A")
        pull = asyncio.create_task(talk.pull("T1", 0, queueId=3, sysFlag=WAITING))
        await asyncio.sleep(0.05)
        await talk.send("T1", b"news", e=3)
        assert [record.body for record in records((await pull).content)] == [b"news"]

    async def test_only_matching_messages_wake_a_pull(self, talk: Talk) -> None:
        await send(talk, "A")
        pull = asyncio.create_task(talk.pull("T1", 1, sysFlag=WAITING, subscription="B"))
        await asyncio.sleep(0.02)
        await send(talk, "A", "A")
        await asyncio.sleep(0.05)
        assert not pull.done()
        await send(talk, "B")
        answer = await pull
        assert [record.tags for record in records(answer.content)] == ["B"]
        assert place(answer) == (4, 0, 4)

    async def test_a_waiting_pull_is_answered_when_its_time_is_over(self, talk: Talk) -> None:
        await send(talk, "A")
        answer = await talk.pull("T1", 1, sysFlag=WAITING, suspendTimeoutMillis=30)
        assert (answer.code, place(answer)) == (ResponseCode.PULL_NOT_FOUND, (1, 0, 1))

    async def test_a_timeout_moves_past_messages_that_do_not_match(self, talk: Talk) -> None:
        await send(talk, "A")
        held = talk.broker._parts.state.long_polling
        pull = asyncio.create_task(talk.pull("T1", 1, sysFlag=WAITING, subscription="B"))
        await until(lambda: held._count)
        await send(talk, "A", "A")
        held.release()  # its time is over
        answer = await pull
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert place(answer) == (3, 0, 3)

    async def test_waiting_pulls_of_closed_connections_are_dropped(self, talk: Talk) -> None:
        await send(talk, "A")
        other = RemotingClient()
        leaving = Talk(talk.broker, other)
        pull = asyncio.create_task(leaving.pull("T1", 1, sysFlag=WAITING))
        await asyncio.sleep(0.05)
        assert not pull.done()
        await other.close()
        with pytest.raises(ConnectionError):
            await pull
        assert (await talk.send("T1")).code == 0

    async def test_many_pulls_wait_at_once(self, talk: Talk) -> None:
        await send(talk, "A")
        pulls = [
            asyncio.create_task(talk.pull("T1", 1, sysFlag=WAITING, consumerGroup=f"G{n}"))
            for n in range(100)
        ]
        await asyncio.sleep(0.05)
        await talk.send("T1", b"news")
        answers = await asyncio.gather(*pulls)
        assert {len(records(answer.content)) for answer in answers} == {1}


async def test_a_pull_commits_the_offset_that_it_carries(talk: Talk) -> None:
    await send(talk, "A", "A")
    await talk.pull("T1", 1, sysFlag=SUBSCRIPTION | 1, commitOffset=1)
    assert await talk.committed() == 1


class TestFencedMaster:
    """A master without its lease cannot know whether its successor has more messages."""

    @pytest.fixture
    async def fence(self, talk: Talk) -> LeaseFence:
        clock = ManualClock()
        fence = LeaseFence(clock)
        fence.until = clock.since_boot() + 1
        await send(talk, "A", "B")
        talk.broker.broker_store.gate.fence = fence
        return fence

    async def test_it_still_serves_the_messages_that_it_has(
        self, talk: Talk, fence: LeaseFence
    ) -> None:
        fence.until = -math.inf
        assert len(records((await talk.pull("T1", 1)).content)) == 1

    @pytest.mark.parametrize(("topic", "offset"), [("T1", 2), ("T1", 5), ("T2", 0), ("T2", 3)])
    async def test_it_does_not_say_where_a_queue_ends(
        self, talk: Talk, fence: LeaseFence, topic: str, offset: int
    ) -> None:
        """Consumers would be set back to that offset."""
        talk.broker.topics.put([TopicConfig("T2")])
        expected = (
            ResponseCode.PULL_NOT_FOUND
            if (topic, offset) in (("T1", 2), ("T2", 0))
            else ResponseCode.PULL_OFFSET_MOVED
        )
        assert (await talk.pull(topic, offset)).code == expected
        fence.until = -math.inf
        answer = await talk.pull(topic, offset)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark == (
            f"whether queue 0 of {topic} has messages from offset {offset} on is not known here: "
            "this broker does not hold the lease of its group, so another one may be the master; "
            "send to the master that name servers name"
        )

    async def test_a_pull_ahead_of_it_waits_for_the_lease(
        self, talk: Talk, fence: LeaseFence
    ) -> None:
        fence.until = -math.inf
        waiting = asyncio.create_task(talk.pull("T1", 3, sysFlag=WAITING))
        await until(lambda: talk.broker._parts.state.long_polling._held)
        fence.until = math.inf
        await send(talk, "A", "A")
        assert [record.queue_offset for record in records((await waiting).content)] == [3]

    async def test_a_pull_whose_time_is_over_is_refused(
        self, talk: Talk, fence: LeaseFence
    ) -> None:
        fence.until = -math.inf
        answer = await talk.pull("T1", 2, sysFlag=WAITING, suspendTimeoutMillis=1)
        assert answer.code == ResponseCode.SYSTEM_BUSY


class TestReadHints:
    """The broker that a consumer should read from next (``suggestWhichBrokerId``)."""

    READABLE = BrokerConfig(slave_read=True)

    async def suggested(self, talk: Talk, offset: int = 0) -> tuple[int, str]:
        answer = await talk.pull("T1", offset)
        return answer.code, answer.fields["suggestWhichBrokerId"]

    async def test_a_master_sends_slow_consumers_to_a_slave(self) -> None:
        async with talking(config=self.READABLE, store=SMALL.replace(in_memory_ratio=0)) as talk:
            group = SubscriptionGroupConfig("CG", which_broker_when_consume_slowly=3)
            talk.broker.groups.put([group])
            await send(talk, "A", "B")
            assert await self.suggested(talk) == (ResponseCode.SUCCESS, "3")

    async def test_a_master_sends_nobody_away_by_default(self) -> None:
        async with talking(store=SMALL.replace(in_memory_ratio=0)) as talk:
            await send(talk, "A", "B")
            assert await self.suggested(talk) == (ResponseCode.SUCCESS, "0")

    async def test_a_slave_serves_pulls_only_if_it_may(self, talk: Talk) -> None:
        await send(talk, "A")
        await talk.broker.become(BrokerRole.SLAVE, 1)
        answer = await talk.pull("T1")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "slaveReadEnable=true" in (answer.remark or "")
        await talk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"slaveReadEnable=true")
        assert await self.suggested(talk) == (ResponseCode.SUCCESS, "0")

    async def test_a_slave_without_a_master_keeps_its_consumers(self) -> None:
        async with talking(config=self.READABLE) as talk:
            await send(talk, "A")
            await talk.broker.become(BrokerRole.SLAVE, 1)
            assert await self.suggested(talk, 1) == (ResponseCode.PULL_NOT_FOUND, "0")
            assert await self.suggested(talk, 7) == (ResponseCode.PULL_NOT_FOUND, "0")

    async def test_a_slave_sends_consumers_that_have_read_everything_to_the_master(self) -> None:
        async with talking(config=self.READABLE) as talk:
            await send(talk, "A")
            await talk.broker.become(BrokerRole.SLAVE, 1)
            name_server = talk.broker._name_server
            assert name_server is not None
            name_server.register_local(
                cluster="c", name="broker-a", address="127.0.0.1:1", topics=TopicConfigTable()
            )
            talk.broker._parts.registration.look_for_master()
            retry = ResponseCode.PULL_RETRY_IMMEDIATELY
            assert await self.suggested(talk) == (ResponseCode.SUCCESS, "0")
            assert await self.suggested(talk, 1) == (retry, "0")
            beyond = await talk.pull("T1", 7)
            assert (beyond.code, place(beyond)[0]) == (retry, 7)

    async def test_an_unknown_group_may_read_from_a_slave(self) -> None:
        async with talking(config=self.READABLE) as talk:
            await send(talk, "A")
            await talk.broker.become(BrokerRole.SLAVE, 1)
            answer = await talk.pull("T1", consumerGroup="unknown")
            assert answer.code == ResponseCode.SUCCESS
            assert talk.broker.groups.get("unknown") is None
