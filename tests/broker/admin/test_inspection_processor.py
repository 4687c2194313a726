"""Requests of tools for statistics, queue units, producers and forbidden groups."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.admin.test_topic_group_processor import commit, sent
from tests.broker.brokers import SMALL, SUBSCRIPTION, SUSPEND, Fields, Talk, talking

from firetrail.format.values.integers import INT64_MAX
from firetrail.format.values.javahash import java_hash
from firetrail.remoting.messages.admin.admin_bodies import (
    BrokerStatsData,
    ConsumeQueueBody,
    ConsumeStats,
    ConsumeStatsList,
    CorrectionOffsets,
    GroupForbidden,
    ProducerTable,
    TopicStats,
)
from firetrail.remoting.messages.bodies import KVTable, MessageQueue
from firetrail.remoting.wire.codes import RequestCode, ResponseCode


class TestStatistics:
    async def test_messages_are_counted_by_topic_group_and_broker(self, talk: Talk) -> None:
        await sent(talk, 3)
        await talk.pull_until("T1", 3)
        for name, key, expected in (
            ("TOPIC_PUT_NUMS", "T1", 3),
            ("GROUP_GET_NUMS", "T1@CG", 3),
            ("BROKER_PUT_NUMS", "DefaultCluster", 3),
            ("BROKER_GET_NUMS", "DefaultCluster", 3),
        ):
            answer = await talk.ask(
                RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key
            )
            stats = BrokerStatsData.decode(answer.content)
            assert stats.stats_minute.sum == stats.stats_day.sum == expected, name
            assert stats.stats_minute.tps > 0
        answer = await talk.ask(
            RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_SIZE", statsKey="T1"
        )
        assert BrokerStatsData.decode(answer.content).stats_hour.avgpt > 100
        topic = await talk.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T1")
        assert TopicStats.decode(topic.content).topic_put_tps
        group = await talk.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="CG", topic="T1")
        assert ConsumeStats.decode(group.content).consume_tps > 0

    async def test_messages_sent_back_are_counted(self, talk: Talk) -> None:
        place = (await sent(talk, 1))[0]
        await talk.beat("CG", subscriptions={"T1": "*"})
        offset = int(place.fields["msgId"][16:], 16)
        back: Fields = {"offset": offset, "group": "CG", "delayLevel": 0}
        assert (await talk.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        answer = await talk.ask(
            RequestCode.VIEW_BROKER_STATS_DATA, statsName="SNDBCK_PUT_NUMS", statsKey="T1@CG"
        )
        assert BrokerStatsData.decode(answer.content).stats_minute.sum == 1

    @pytest.mark.parametrize("name", ["TOPIC_PUT_NUMS", "BROKER_PUT_NUMS", "QUEUE_PUT_NUMS", ""])
    async def test_unknown_statistics_are_refused(self, talk: Talk, name: str) -> None:
        answer = await talk.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey="none")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"The stats <{name}> <none> not exist"

    async def test_the_progress_of_all_groups_is_returned(self, talk: Talk) -> None:
        await sent(talk, 5)
        await commit(talk, 2, "G1")
        await commit(talk, 4, "G2")
        answer = await talk.ask(RequestCode.GET_BROKER_CONSUME_STATS)
        found = ConsumeStatsList.decode(answer.content)
        assert found.total_diff == 3 + 1 and found.broker_addr == talk.broker.address
        assert [list(each) for each in found.consume_stats_list] == [["G1"], ["G2"]]
        first = found.consume_stats_list[0]["G1"][0]
        progress = first.offset_table[MessageQueue("T1", "broker-a", 0)]
        assert (progress.broker_offset, progress.consumer_offset) == (5, 2)
        ordered = await talk.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=True)
        assert ConsumeStatsList.decode(ordered.content).total_diff == 0


class TestQueues:
    async def test_units_of_a_queue_are_listed(self, talk: Talk) -> None:
        await sent(talk, 4)
        answer = await talk.ask(
            RequestCode.QUERY_CONSUME_QUEUE, topic="T1", queueId=0, index=1, count=2
        )
        body = ConsumeQueueBody.decode(answer.content)
        assert (body.min_queue_index, body.max_queue_index) == (0, 4)
        assert [unit.tags_code for unit in body.queue_data] == [java_hash("A")] * 2
        assert body.queue_data[1].physic_offset > body.queue_data[0].physic_offset > 0

    async def test_units_that_match_the_subscription_are_marked(self, talk: Talk) -> None:
        await sent(talk, 1)
        asked: Fields = {"topic": "T1", "queueId": 0, "index": 0, "count": 9, "consumerGroup": "CG"}
        offline = await talk.ask(RequestCode.QUERY_CONSUME_QUEUE, asked)
        found = ConsumeQueueBody.decode(offline.content)
        assert found.filter_data == "CG@T1 is not online!"
        assert [unit.eval for unit in found.queue_data] == [False]
        for tags, expected in (("A || B", True), ("B", False), ("*", True)):
            await talk.beat("CG", subscriptions={"T1": tags})
            answer = await talk.ask(RequestCode.QUERY_CONSUME_QUEUE, asked)
            body = ConsumeQueueBody.decode(answer.content)
            assert body.subscription_data is not None
            assert [unit.eval for unit in body.queue_data] == [expected]

    async def test_missing_queues_are_refused(self, talk: Talk) -> None:
        answer = await talk.ask(
            RequestCode.QUERY_CONSUME_QUEUE, topic="T1", queueId=7, index=0, count=1
        )
        assert (answer.code, answer.remark) == (1, "7@T1 is not exist!")


NUMBERS = """
    msgPutTotalTodayNow msgGetTotalTodayNow msgPutTotalTodayMorning msgGetTotalTodayMorning
    msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning bootTimestamp brokerVersion
    sendThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills
    pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize pullThreadPoolQueueSize
    sendThreadPoolQueueSize sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity
    queryThreadPoolQueueCapacity commitLogMinOffset commitLogMaxOffset dispatchMaxBuffer
    consumeQueueDiskRatio commitLogDiskRatio pageCacheLockTimeMills getMessageEntireTimeMax
    putMessageTimesTotal startAcceptSendRequestTimeStamp putMessageEntireTimeMax
    earliestMessageTimeStamp remainTransientStoreBufferNumbs putMessageAverageSize
    putMessageSizeTotal dispatchBehindBytes
"""
RATES = ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps")


async def test_the_disks_of_a_log_in_several_folders_are_listed(tmp_path: Path) -> None:
    folders = tuple(str(tmp_path / name) for name in ("d1", "d2"))
    async with talking(tmp_path / "store", None, SMALL.replace(commit_log_paths=folders)) as talk:
        answer = await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = KVTable.decode(answer.content).table
        for folder in folders:
            assert 0 <= float(table[f"commitLogDiskRatio_{folder}"]) <= 1


async def test_producers_are_listed_by_group(talk: Talk) -> None:
    await talk.beat(producer="PG1", client_id="p1")
    await talk.beat(producer="PG2", client_id="p1")
    answer = await talk.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    table = ProducerTable.decode(answer.content).data
    assert list(table) == ["PG1", "PG2"]
    [producer] = table["PG1"]
    assert producer.client_id == "p1" and producer.remote_ip.startswith("127.0.0.1:")
    assert producer.last_update_timestamp > 1_700_000_000_000
    assert b'"remoteIP"' in answer.content


async def test_correction_offsets_are_the_lowest_of_all_groups(talk: Talk) -> None:
    await sent(talk, 5)
    for group, offset in (("G1", 4), ("G2", 3), ("G3", 1)):
        await commit(talk, offset, group)

    async def lowest(**fields: str) -> dict[int, int]:
        answer = await talk.ask(RequestCode.QUERY_CORRECTION_OFFSET, fields, topic="T1")
        return CorrectionOffsets.decode(answer.content).correction_offsets

    assert await lowest() == {0: 1}
    assert await lowest(filterGroups="G3") == {0: 3}
    assert await lowest(filterGroups="G3,G2") == {0: 4}
    assert await lowest(filterGroups="G3", compareGroup="G1") == {0: 3}
    assert await lowest(filterGroups="G3", compareGroup="G3") == {0: INT64_MAX}


async def forbid(talk: Talk, readable: bool | None) -> bool:
    answer = await talk.ask(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, group="CG", topic="T1", readable=readable
    )
    assert answer.code == 0
    return GroupForbidden.decode(answer.content).readable


async def test_a_group_can_be_forbidden_to_read_a_topic(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await sent(talk, 1)
        assert await forbid(talk, None) is True
        assert await forbid(talk, False) is False
        assert '"T1":4' in (tmp_path / "config" / "subscriptionGroup.json").read_text()
    async with talking(tmp_path) as talk:
        assert await forbid(talk, None) is False
        assert (await talk.pull("T1")).code == ResponseCode.NO_PERMISSION
        assert (await talk.pull("T1", consumerGroup="other")).code == 0
        assert await forbid(talk, True) is True
        flag = SUSPEND | SUBSCRIPTION
        assert (await talk.pull("T1", sysFlag=flag)).code == 0
        assert talk.broker.groups.content().forbidden_table is None
        answer = await talk.ask(
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, group="CG", topic="none", readable=False
        )
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_rates_count_pulls_with_and_without_messages(talk: Talk) -> None:
    await sent(talk, 8)
    await talk.pull("T1")
    for _ in range(3):
        await talk.pull("T1", 8)
    answer = await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = KVTable.decode(answer.content).table
    kinds = ("Found", "Miss", "Total", "Transfered", "Transferred")
    found, missed, total, *messages = (float(table[f"get{kind}Tps"].split()[2]) for kind in kinds)
    assert 0 < found < missed < total < messages[0] == messages[1]


async def test_totals_restart_every_day(monkeypatch: pytest.MonkeyPatch, talk: Talk) -> None:
    await sent(talk, 2)
    statistics = talk.broker._parts.runtime
    now_ms = statistics._now_ms
    monkeypatch.setattr(statistics, "_now_ms", lambda: now_ms() + 24 * 3_600_000)
    statistics.sample()
    await sent(talk, 1)
    answer = await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = answer.content.decode()
    assert '"msgPutTotalYesterdayMorning":"0"' in table
    assert '"msgPutTotalTodayMorning":"2"' in table
    assert '"msgPutTotalTodayNow":"3"' in table


async def test_the_runtime_info_has_every_figure_that_exporters_parse(talk: Talk) -> None:
    """rocketmq-exporter parses them without checks: one missing key costs it all metrics."""
    await sent(talk, 3)
    answer = await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = KVTable.decode(answer.content).table
    for name in NUMBERS.split():
        float(table[name])
    for name in RATES:
        assert [float(rate) >= 0 for rate in table[name].split(" ")] == [True] * 3
    words = table["commitLogDirCapacity"].split(" ")
    assert (words[0], words[4]) == ("Total", "Free")
    assert float(words[2]) > 0 <= float(words[6])
    assert words[3].endswith("iB,")
    assert words[7].endswith("iB.")
    times = dict(part.split(":") for part in table["putMessageDistributeTime"].split(" "))
    assert list(times)[:2] == ["[<=0ms]", "[0~10ms]"]
    assert (len(times), sum(map(int, times.values()))) == (13, 3)
    size = talk.broker.store.log_range[1]
    assert table["putMessageSizeTotal"] == str(size)
    assert float(table["putMessageAverageSize"]) == size / 3
    assert table["sendThreadPoolQueueCapacity"] == "10000"
    assert table["remainTransientStoreBufferNumbs"] == "2147483647"


async def test_free_write_buffers_are_reported() -> None:
    store = SMALL.replace(write_buffer_pool=True, write_buffer_count=3)
    async with talking(store=store) as talk:
        answer = await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert KVTable.decode(answer.content).table["remainTransientStoreBufferNumbs"] == "3"


async def test_the_figures_of_delay_levels_are_offset_and_end(talk: Talk) -> None:
    await talk.send("T1", i="DELAY\x011\x02")
    await talk.send("T1", i="DELAY\x0118\x02")
    await talk.send("T1", i="DELAY\x0118\x02")
    while len(talk.broker._parts.schedule.content().offset_table) < 2:
        await asyncio.sleep(0.01)
    answer = await talk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = KVTable.decode(answer.content).table
    assert table["scheduleMessageOffset_18"] == "0,2"
    assert table["scheduleMessageOffset_1"] in ("0,1", "1,1")
    assert "scheduleMessageOffset_2" not in table


async def test_no_group_is_limited_in_reading_cold_data(talk: Talk) -> None:
    answer = await talk.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    assert answer.content == b'{"configTable":{},"runtimeTable":{}}'


async def test_consume_stats_include_the_offset_of_the_last_pull(talk: Talk) -> None:
    async def pulled() -> tuple[int, int | None]:
        answer = await talk.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="CG", topic="T1")
        table = ConsumeStats.decode(answer.content).offset_table
        (found,) = (found for queue, found in table.items() if queue.queue_id == 0)
        return found.consumer_offset, found.pull_offset

    await sent(talk, 8)
    await talk.commit(2)
    assert await pulled() == (2, 2)
    await talk.pull("T1", 2, maxMsgNums=4)
    assert await pulled() == (2, 6)
    reset: Fields = {"topic": "T1", "group": "CG", "timestamp": 0, "isForce": True, "offset": 1}
    await talk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, queueId=0)
    assert await pulled() == (1, 1)
    await talk.pull("T1", 8)
    talk.broker.offsets.forget(group="CG")
    assert await pulled() == (0, 0)
