"""Administrative requests: topics, groups, settings, statistics and resets."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import Fields, Talk, talking

from firetrail import Message
from firetrail.format.names import pop_retry_topic
from firetrail.remoting.messages.admin.admin_bodies import (
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    ProducerConnection,
    TimeSpans,
    TopicStats,
)
from firetrail.remoting.messages.bodies import (
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
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

TOPIC: Fields = {
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
    assert (await talk.commit(offset, group)).code == 0


async def sent(talk: Talk, count: int) -> list[RemotingCommand]:
    answers = [await talk.send("T1", b"%d" % n) for n in range(count)]
    await asyncio.to_thread(talk.broker.store.wait_dispatched)
    return answers


class TestTopics:
    async def test_topics_are_created_changed_and_deleted(self, tmp_path: Path) -> None:
        async with talking(tmp_path) as talk:
            assert (await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0
            assert '"T1"' in (tmp_path / "config" / "topics.json").read_text()
            answer = await talk.ask(RequestCode.GET_TOPIC_CONFIG, topic="T1")
            assert TopicConfig.decode(answer.content) == TopicConfig("T1", 3, 2, 6)
            more = TopicConfigList([TopicConfig("T2", 1, 1), TopicConfig("T3", 1, 1)])
            await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=more.encode())
            everything = await talk.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
            table = TopicConfigTable.decode(everything.content)
            assert {"T1", "T2", "T3", "TBW102"} <= set(table.topic_config_table)
            assert table.data_version.counter == 2
            assert (await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T1")).code == 0
            assert (await talk.send("T1", c="none")).code == ResponseCode.TOPIC_NOT_EXIST

    @pytest.mark.parametrize(
        "changes", [{"topic": "a/b"}, {"topic": "TBW102"}, {"perm": 9}, {"readQueueNums": -1}]
    )
    async def test_invalid_topics_are_refused(self, talk: Talk, changes: Fields) -> None:
        before = talk.broker.topics.names()
        answer = await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | changes)
        assert answer.code != 0 and answer.remark
        assert talk.broker.topics.names() == before
        removal = await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="TBW102")
        assert removal.code == ResponseCode.INVALID_PARAMETER

    async def test_system_topics_are_listed(self, talk: Talk) -> None:
        answer = await talk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        names = TopicList.decode(answer.content).topic_list
        assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} <= set(names)


async def test_groups_are_created_and_deleted(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        body = SubscriptionGroupConfig("G1", retry_max_times=3).encode()
        await talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        bare_list = b"[" + SubscriptionGroupConfig("G2").encode() + b"]"
        await talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=bare_list)
        answer = await talk.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = SubscriptionGroupTable.decode(answer.content).subscription_group_table
        assert table["G1"].retry_max_times == 3 and "G2" in table
        assert '"G1"' in (tmp_path / "config" / "subscriptionGroup.json").read_text()
        await sent(talk, 1)
        await commit(talk, 1, "G1")
        gone: Fields = {"groupName": "G1", "cleanOffset": True}
        assert (await talk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
        missing = await talk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G1")
        assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        left = ConsumerOffsets.decode((await talk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).content)
        assert left.offset_table == {}


@pytest.mark.parametrize("other", ["", "its name is a group's", "another pair has its name"])
async def test_a_retry_topic_of_others_outlives_a_topic(tmp_path: Path, other: str) -> None:
    """The name of the topic that redelivers pops does not say where the group's name ends."""
    retry = pop_retry_topic("T1", "C_G")
    async with talking(tmp_path) as talk:
        for topic in ("T1", "G_T1", retry):
            created = await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": topic})
            assert created.code == 0, created.remark
        await sent(talk, 1)
        await commit(talk, 1, "C_G")
        if other == "its name is a group's":
            body = SubscriptionGroupConfig("C_G_T1").encode()
            await talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        elif other:
            assert (await talk.commit(0, "C", "G_T1")).code == 0
        assert (await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T1")).code == 0
        assert (retry in talk.broker.topics.names()) == bool(other)


async def test_stats_of_topics_and_groups_are_returned(talk: Talk) -> None:
    await sent(talk, 3)
    await commit(talk, 1)
    queue = MessageQueue("T1", "broker-a", 0)
    stats = await talk.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T1")
    table = TopicStats.decode(stats.content).offset_table
    assert len(table) == 4
    assert (table[queue].min_offset, table[queue].max_offset) == (0, 3)
    assert table[queue].last_update_timestamp == talk.broker.broker_store.queues.store_time(
        "T1", 0, 2
    )
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


async def test_stats_of_a_group_include_messages_that_wait_for_redelivery(talk: Talk) -> None:
    """The group has no offset in their topic before it pops them."""
    await sent(talk, 1)
    await commit(talk, 1)
    retry = "%RETRY%CG_T1"
    talk.broker.topics.ensure(retry, 1)
    await asyncio.to_thread(talk.broker.store.put, Message(retry, b"again"))
    stats = await talk.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="CG")
    progress = ConsumeStats.decode(stats.content).offset_table[MessageQueue(retry, "broker-a", 0)]
    assert (progress.broker_offset, progress.consumer_offset) == (1, 0)
    everything = await talk.ask(RequestCode.GET_BROKER_CONSUME_STATS)
    assert ConsumeStatsList.decode(everything.content).total_diff == 1
    topics = await talk.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="CG")
    assert TopicList.decode(topics.content).topic_list == ["T1"]


async def test_connected_clients_are_listed(talk: Talk) -> None:
    answer = await talk.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG")
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    await talk.beat("CG", "c1", {"T1": "A"})
    await talk.beat(producer="PG", client_id="p1")
    answer = await talk.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG")
    body = ConsumerConnection.decode(answer.content)
    assert [c.client_id for c in body.connection_set] == ["c1"]
    assert body.subscription_table["T1"].sub_string == "A"
    answer = await talk.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="PG")
    assert ProducerConnection.decode(answer.content).connection_set[0].language == "JAVA"


async def test_runtime_info_and_settings_are_returned(talk: Talk) -> None:
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
    change = await talk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerName=x\n")
    assert change.code == ResponseCode.NO_PERMISSION


async def test_a_broadcast_group_that_is_online_has_no_backlog(talk: Talk) -> None:
    await sent(talk, 3)
    broadcast = MessageModel.BROADCASTING
    await talk.beat("CG", "c1", {"T1": "*"}, message_model=broadcast)
    for topic in (None, "T1"):
        answer = await talk.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="CG", topic=topic)
        assert ConsumeStats.decode(answer.content).offset_table == {}
