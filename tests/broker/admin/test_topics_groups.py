"""Administrative requests: topics, groups, settings, statistics and resets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SUBSCRIPTION, SUSPEND, Talk, records, running

from firetrail.broker.config import BrokerConfig
from firetrail.remoting.admin_bodies import (
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    DirectlyConsumed,
    ProducerConnection,
    ResetOffsetList,
    ResetOffsets,
    TimeSpans,
    TopicStats,
)
from firetrail.remoting.bodies import (
    ConsumerOffsets,
    GroupList,
    KVTable,
    MessageModel,
    MessageQueue,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
)
from firetrail.remoting.client import Client
from firetrail.remoting.codes import Language, PullFlag, RequestCode, ResponseCode
from firetrail.remoting.command import Command
from firetrail.remoting.connection import Connection

TOPIC: dict[str, Any] = {
    "topic": "T1",
    "defaultTopic": "TBW102",
    "readQueueNums": 3,
    "writeQueueNums": 2,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
}


async def commit(talk: Talk, offset: int, group: str = "CG") -> None:
    fields = {"consumerGroup": group, "topic": "T1", "queueId": 0, "commitOffset": offset}
    assert (await talk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)).code == 0


async def sent(talk: Talk, count: int) -> list[Command]:
    answers = [await talk.send("T1", b"%d" % n) for n in range(count)]
    await asyncio.to_thread(talk.broker.store.wait_dispatched)
    return answers


class TestTopics:
    def test_topics_are_created_changed_and_deleted(self, tmp_path: Path) -> None:
        async def test(talk: Talk) -> None:
            assert (await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **TOPIC)).code == 0
            assert '"T1"' in (tmp_path / "config" / "topics.json").read_text()
            answer = await talk.ask(RequestCode.GET_TOPIC_CONFIG, topic="T1")
            assert TopicConfig.decode(answer.content) == TopicConfig("T1", 3, 2, 6)
            more = TopicConfigList([TopicConfig("T2", 1, 1), TopicConfig("T3", 1, 1)])
            await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, more.encode())
            everything = await talk.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
            table = TopicConfigTable.decode(everything.content)
            assert {"T1", "T2", "T3", "TBW102"} <= set(table.topic_config_table)
            assert table.data_version.counter == 2
            assert (await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T1")).code == 0
            assert (await talk.send("T1", c="none")).code == ResponseCode.TOPIC_NOT_EXIST

        running(test, tmp_path)

    @pytest.mark.parametrize(
        "changes", [{"topic": "a/b"}, {"topic": "TBW102"}, {"perm": 9}, {"readQueueNums": -1}]
    )
    def test_invalid_topics_are_refused(self, changes: dict[str, Any]) -> None:
        async def test(talk: Talk) -> None:
            before = talk.broker.topics.names()
            answer = await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **(TOPIC | changes))
            assert answer.code != 0 and answer.remark
            assert talk.broker.topics.names() == before
            removal = await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="TBW102")
            assert removal.code == ResponseCode.INVALID_PARAMETER

        running(test)

    def test_system_topics_are_listed(self) -> None:
        async def test(talk: Talk) -> None:
            answer = await talk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            names = TopicList.decode(answer.content).topic_list
            assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} <= set(names)

        running(test)


def test_groups_are_created_and_deleted(tmp_path: Path) -> None:
    async def test(talk: Talk) -> None:
        body = SubscriptionGroupConfig("G1", retry_max_times=3).encode()
        await talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        bare_list = b"[" + SubscriptionGroupConfig("G2").encode() + b"]"
        await talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, bare_list)
        answer = await talk.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = SubscriptionGroupTable.decode(answer.content).subscription_group_table
        assert table["G1"].retry_max_times == 3 and "G2" in table
        assert '"G1"' in (tmp_path / "config" / "subscriptionGroup.json").read_text()
        await sent(talk, 1)
        await commit(talk, 1, "G1")
        gone = {"groupName": "G1", "cleanOffset": True}
        assert (await talk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, **gone)).code == 0
        missing = await talk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G1")
        assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        left = ConsumerOffsets.decode((await talk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).content)
        assert left.offset_table == {}

    running(test, tmp_path)


def test_stats_of_topics_and_groups() -> None:
    async def test(talk: Talk) -> None:
        await sent(talk, 3)
        await commit(talk, 1)
        queue = MessageQueue("T1", "broker-a", 0)
        stats = await talk.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T1")
        table = TopicStats.decode(stats.content).offset_table
        assert len(table) == 4
        assert (table[queue].min_offset, table[queue].max_offset) == (0, 3)
        assert table[queue].last_update_timestamp == talk.broker.store.store_time("T1", 0, 2)
        progress = await talk.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="CG")
        wrapper = ConsumeStats.decode(progress.content).offset_table[queue]
        assert (wrapper.broker_offset, wrapper.consumer_offset) == (3, 1)
        spans = await talk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T1", group="CG")
        span = TimeSpans.decode(spans.content).consume_time_span_set[0]
        assert span.min_time_stamp <= span.consume_time_stamp <= span.max_time_stamp
        groups = await talk.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T1")
        assert GroupList.decode(groups.content).group_list == ["CG"]
        topics = await talk.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="CG")
        assert TopicList.decode(topics.content).topic_list == ["T1"]

    running(test)


def test_connected_clients_are_listed() -> None:
    async def test(talk: Talk) -> None:
        nobody = await talk.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG")
        assert nobody.code == ResponseCode.CONSUMER_NOT_ONLINE
        await talk.beat("CG", "c1", {"T1": "A"})
        await talk.beat(producer="PG", client_id="p1")
        answer = await talk.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG")
        body = ConsumerConnection.decode(answer.content)
        assert [c.client_id for c in body.connection_set] == ["c1"]
        assert body.subscription_table["T1"].sub_string == "A"
        answer = await talk.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="PG")
        assert ProducerConnection.decode(answer.content).connection_set[0].language == "JAVA"

    running(test)


def test_runtime_info_and_settings_are_returned() -> None:
    async def test(talk: Talk) -> None:
        await sent(talk, 2)
        table = KVTable.decode((await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).content).table
        assert table["msgPutTotalTodayNow"] == "2"
        assert int(table["commitLogMaxOffset"]) > 0
        assert len(table["putTps"].split()) == 3
        answer = await talk.ask(RequestCode.GET_BROKER_CONFIG)
        lines = answer.content.decode().splitlines()
        assert "brokerName=broker-a" in lines
        assert "mappedFileSizeCommitLog=8388608" in lines
        assert f"listenPort={talk.broker.address.rpartition(':')[2]}" in lines
        change = await talk.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerName=x\n")
        assert change.code == ResponseCode.NO_PERMISSION

    running(test)


class TestResets:
    async def reset(self, talk: Talk, **changes: Any) -> dict[int, int]:
        fields = {"topic": "T1", "group": "CG", "timestamp": 0, "isForce": True} | changes
        answer = await talk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
        table = ResetOffsets.decode(answer.content).offset_table
        return {queue.queue_id: offset for queue, offset in table.items()}

    def test_offsets_are_reset_to_a_time(self) -> None:
        async def test(talk: Talk) -> None:
            await sent(talk, 3)
            await commit(talk, 2)
            assert (await self.reset(talk))[0] == 0
            assert talk.broker.offsets.get("CG", "T1", 0) == 0
            assert (await self.reset(talk, timestamp=-1))[0] == 3
            assert (await self.reset(talk, timestamp=-1, isForce=False))[0] == 3
            await commit(talk, 1)
            assert (await self.reset(talk, timestamp=-1, isForce=False))[0] == 1
            assert await self.reset(talk, queueId=0, offset=2) == {0: 2}

        running(test)

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
    def test_invalid_resets_are_refused(
        self, changes: dict[str, Any], code: int, remark: str
    ) -> None:
        async def test(talk: Talk) -> None:
            await sent(talk, 3)
            await commit(talk, 2)
            fields = {"topic": "T1", "group": "CG", "timestamp": 0, "isForce": True} | changes
            answer = await talk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
            assert answer.code == code
            assert remark in (answer.remark or "")
            assert talk.broker.offsets.get("CG", "T1", 0) == 2
            assert not talk.broker.offsets.of_group("none")

        running(test)

    def test_a_pushed_reset_has_the_format_of_the_language(self) -> None:
        told: list[Command] = []

        def take(connection: Connection, request: Command) -> None:
            told.append(request)

        async def test(talk: Talk) -> None:
            await sent(talk, 1)
            await talk.beat("CG", "java", {"T1": "*"})
            await self.reset(talk)
            other = Client({RequestCode.RESET_CONSUMER_CLIENT_OFFSET: take})
            body = b'{"clientID":"go","consumerDataSet":[{"groupName":"CG"}]}'
            beat = Command(RequestCode.HEART_BEAT, {}, body, language=Language.GO)
            await other.request(talk.broker.address, beat)
            await self.reset(talk)
            while len(told) < 3:
                await asyncio.sleep(0.01)
            bodies = [request.content for request in told]
            assert sum(b'"offsetTable":[' in body for body in bodies) == 1
            flat = next(body for body in bodies if b'"offsetTable":[' in body)
            assert ResetOffsetList.decode(flat).offset_table[0].topic == "T1"
            await other.close()

        pushed = BrokerConfig(server_side_reset=False)
        handlers = {RequestCode.RESET_CONSUMER_CLIENT_OFFSET: take}
        running(test, config=pushed, client_handlers=handlers)

    def test_the_next_pull_announces_a_reset(self) -> None:
        """As in RocketMQ 5.3, nothing is pushed to consumers, however often offsets are reset."""

        def take(connection: Connection, request: Command) -> None:
            pytest.fail("the consumer was told")

        async def test(talk: Talk) -> None:
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

        running(test, client_handlers={RequestCode.RESET_CONSUMER_CLIENT_OFFSET: take})

    def test_a_waiting_pull_announces_a_reset_at_once(self) -> None:
        async def test(talk: Talk) -> None:
            await sent(talk, 1)
            await talk.beat("CG", "c1", {"T1": "*"})
            waits = asyncio.create_task(
                talk.pull("T1", 1, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=600_000)
            )
            while not talk.broker._parts.state.long_polling._held:
                await asyncio.sleep(0.01)
            await self.reset(talk)
            assert (await waits).fields["nextBeginOffset"] == "0"

        running(test)

    def test_a_consumer_that_has_prefetched_all_messages_skips_them(self) -> None:
        """It waits at the end of the queue, which is the new offset, with nothing consumed."""

        async def test(talk: Talk) -> None:
            await sent(talk, 3)
            await talk.beat("CG", "c1", {"T1": "*"})
            waits = asyncio.create_task(
                talk.pull("T1", 3, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=600_000)
            )
            while not talk.broker._parts.state.long_polling._held:
                await asyncio.sleep(0.01)
            await commit(talk, 0)
            await self.reset(talk, timestamp=-1)
            answer = await asyncio.wait_for(waits, 30)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert (answer.remark, answer.fields["nextBeginOffset"]) == ("OFFSET_RESET", "3")
            assert talk.broker.offsets.get("CG", "T1", 0) == 3

        running(test)

    def test_a_pull_from_the_new_offset_is_told(self) -> None:
        async def test(talk: Talk) -> None:
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

        running(test)

    def test_a_reset_is_pushed_to_broadcast_members(self) -> None:
        told = asyncio.Event()

        def take(connection: Connection, request: Command) -> None:
            told.set()

        async def test(talk: Talk) -> None:
            await sent(talk, 1)
            await talk.beat("CG", "c1", message_model=MessageModel.BROADCASTING)
            await self.reset(talk)
            await told.wait()

        running(test, client_handlers={RequestCode.RESET_CONSUMER_CLIENT_OFFSET: take})

    def test_offsets_are_cloned_to_another_group(self) -> None:
        async def test(talk: Talk) -> None:
            await sent(talk, 2)
            await commit(talk, 2)
            await talk.beat("G2", "c2")
            await talk.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="CG", destGroup="G2")
            assert talk.broker.offsets.get("G2", "T1", 0) == 2

        running(test)


def test_offsets_are_not_cloned_to_a_missing_group() -> None:
    async def test(talk: Talk) -> None:
        await sent(talk, 2)
        await commit(talk, 2)
        fields = {"srcGroup": "CG", "destGroup": "G2"}
        answer = await talk.ask(RequestCode.CLONE_GROUP_OFFSET, **fields)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark == "Group G2 does not exist"
        assert not talk.broker.offsets.of_group("G2")

    running(test)


def test_requests_are_forwarded_to_a_consumer() -> None:
    def info(connection: Connection, request: Command) -> Command:
        return request.answer(body=ConsumerRunningInfo({"PROP": "x"}).encode())

    def consume(connection: Connection, request: Command) -> Command:
        assert [record.body for record in records(request.content)] == [b"0"]
        return request.answer(body=DirectlyConsumed("CR_SUCCESS").encode())

    async def test(talk: Talk) -> None:
        (answer,) = await sent(talk, 1)
        who = {"consumerGroup": "CG", "clientId": "c1"}
        offline = await talk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **who)
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        await talk.beat("CG", "c1")
        running_info = await talk.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **who)
        assert ConsumerRunningInfo.decode(running_info.content).properties == {"PROP": "x"}
        done = await talk.ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, **who, msgId=answer.fields["msgId"]
        )
        assert DirectlyConsumed.decode(done.content).consume_result == "CR_SUCCESS"

    handlers = {
        RequestCode.GET_CONSUMER_RUNNING_INFO: info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: consume,
    }
    running(test, client_handlers=handlers)


@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY]
)
def test_a_consumer_that_leaves_instead_of_answering(
    code: RequestCode, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Command] = []

    def leave(connection: Connection, request: Command) -> None:
        asked.append(request)
        connection.abort()

    async def test(talk: Talk) -> None:
        (stored,) = await sent(talk, 1)
        consumer = Client({code: leave})
        await talk.beat("CG", "c1", client=consumer)
        secrets = {"AccessKey": "admin", "Signature": "signed", "SecurityToken": "token"}
        who = {"consumerGroup": "CG", "clientId": "c1", "msgId": stored.fields["msgId"]}
        answer = await talk.ask(code, **who, **secrets)
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert answer.remark == "the consumer <c1> not online: it disconnected before it answered"
        assert asked[0].fields["consumerGroup"] == "CG"
        assert not asked[0].fields.keys() & secrets
        await consumer.close()

    running(test)
    assert "Traceback" not in caplog.text


def test_a_broadcast_group_that_is_online_has_no_backlog() -> None:
    async def test(talk: Talk) -> None:
        await sent(talk, 3)
        broadcast = MessageModel.BROADCASTING
        await talk.beat("CG", "c1", {"T1": "*"}, message_model=broadcast)
        for topic in (None, "T1"):
            fields = {"consumerGroup": "CG", "topic": topic}
            answer = await talk.ask(RequestCode.GET_CONSUME_STATS, **fields)
            assert ConsumeStats.decode(answer.content).offset_table == {}

    running(test)


def test_an_unknown_code_is_refused() -> None:
    async def test(talk: Talk) -> None:
        answer = await talk.ask(9999)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == " request type 9999 not supported"

    running(test)
