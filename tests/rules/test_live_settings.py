"""Every live setting takes effect on a running broker and its store.

The table of settings is the list: a setting that is declared live and has no check here fails.
"""

import asyncio
import logging
from typing import Any

import pytest
from tests.broker.brokers import SMALL, SUBSCRIPTION, SUSPEND, Fields, Talk, records, talking
from tests.broker.halves import begin
from tests.broker.pops import fill
from tests.client.clusters import until
from tests.rules.setting_checks import BROKER, QUICK, STORE, change, of_broker, of_store, reads_of

from firetrail.broker import broker_config
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.services.ha_peers import HAPeers
from firetrail.broker.services.scrub import OFF_S, ScrubService
from firetrail.errors import StoreDamagedError
from firetrail.remoting.messages.bodies import BY_SQL, TopicConfig
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.settings.log_settings import LogLevel
from firetrail.store.integrity.damage_ledger import DamagedPlace
from firetrail.store.settings import store_config
from firetrail.store.settings.store_config import BrokerRole, FlushMode


@of_store("max_message_size")
async def _messages_have_the_new_size(talk: Talk) -> None:
    assert (await talk.send("T", b"x" * 2000)).code == 0
    await change(talk, max_message_size=1024)
    assert (await talk.send("T", b"x" * 2000)).code == ResponseCode.MESSAGE_ILLEGAL


@of_store("max_transfer_count_in_memory", "max_transfer_bytes_in_memory")
async def _a_hot_queue_is_read_in_new_portions(talk: Talk) -> None:
    await fill(talk, "T", *[b"x" * 1000] * 8)
    for _ in range(3):
        assert len(records((await talk.pull("T")).content)) == 8
    await change(talk, max_transfer_count_in_memory=2)
    assert len(records((await talk.pull("T")).content)) == 2
    await change(talk, max_transfer_count_in_memory=32, max_transfer_bytes_in_memory=4000)
    assert len(records((await talk.pull("T")).content)) == 3


@of_store(
    "max_transfer_count_on_disk",
    "max_transfer_bytes_on_disk",
    store=SMALL.replace(in_memory_ratio=0.0),
)
async def _an_old_queue_is_read_in_new_portions(talk: Talk) -> None:
    await fill(talk, "T", *[b"x" * 1000] * 8)
    for _ in range(3):
        assert len(records((await talk.pull("T")).content)) == 8
    await change(talk, max_transfer_count_on_disk=2)
    assert len(records((await talk.pull("T")).content)) == 2
    await change(talk, max_transfer_count_on_disk=8, max_transfer_bytes_on_disk=4000)
    assert len(records((await talk.pull("T")).content)) == 3


@of_store("max_filter_bytes")
async def _a_filtered_pull_looks_at_fewer_units(talk: Talk) -> None:
    await fill(talk, "T", *[b"x"] * 100)
    before = await talk.pull("T", subscription="none", maxMsgNums=1)
    await change(talk, max_filter_bytes=200)
    after = await talk.pull("T", subscription="none", maxMsgNums=1)
    ends = [int(answer.fields["nextBeginOffset"]) for answer in (before, after)]
    assert ends == [100, 10]


@of_store("max_query_count", "default_query_count")
async def _queries_return_fewer_messages(talk: Talk) -> None:
    await fill(talk, "T", *[b"x"] * 6)
    store = talk.broker.store
    assert len(store.query("T", "k1")) == 6
    await change(talk, default_query_count=2)
    assert len(store.query("T", "k1")) == 2
    await change(talk, default_query_count=32, max_query_count=3)
    assert len(store.query("T", "k1", max_count=5)) == 3


@of_store("offset_check_in_slave")
async def _a_slave_corrects_offsets(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    await talk.broker.become(BrokerRole.SLAVE, 1)
    await change(talk, slave_read=True)
    before = await talk.pull("T", 9)
    await change(talk, offset_check_in_slave=True)
    after = await talk.pull("T", 9)
    ends = [int(answer.fields["nextBeginOffset"]) for answer in (before, after)]
    assert ends == [9, 1]


@of_store("replica_retention_bytes")
async def _a_slow_replica_holds_back_less(talk: Talk) -> None:
    async with reads_of(talk, store=True) as read:
        talk.broker.broker_store.replica_acks.retained_from()
        assert "replica_retention_bytes" in read


@of_store("sync_flush_timeout_ms", store=SMALL.replace(flush=FlushMode.SYNC))
async def _a_put_waits_for_the_disk(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    async with reads_of(talk, store=True) as read:
        await talk.send("T")
        assert "sync_flush_timeout_ms" in read


FLUSHED = ("flush_interval_ms", "flush_least_pages", "flush_thorough_interval_ms")


@of_store(*FLUSHED, store=SMALL.replace(flush_interval_ms=10, flush_thorough_interval_ms=10_000))
async def _the_flusher_reads_its_settings_again(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    async with reads_of(talk, store=True) as read:
        await talk.send("T")
        await until(lambda: read.issuperset(FLUSHED))


COMMITTED = ("commit_interval_ms", "commit_least_pages", "commit_thorough_interval_ms")
POOLED = SMALL.replace(write_buffer_pool=True, write_buffer_count=2, commit_interval_ms=10)


@of_store(*COMMITTED, store=POOLED)
async def _the_committer_reads_its_settings_again(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    async with reads_of(talk, store=True) as read:
        await talk.send("T")
        await until(lambda: read.issuperset(COMMITTED))


CLEANED = (
    *("file_reserved_hours", "delete_when", "disk_max_used_ratio", "disk_clean_forcibly_ratio"),
    *("disk_warning_ratio", "clean_forcibly", "clean_interval_ms", "delete_batch_max"),
    *("delete_interval_ms", "destroy_forcibly_after_ms"),
    *("consume_queue_flush_least_pages", "consume_queue_flush_thorough_interval_ms"),
)


@of_store(*CLEANED, store=SMALL.replace(commit_log_file_size=64 << 10, max_message_size=8 << 10))
async def _the_housekeeper_reads_its_settings_again(talk: Talk) -> None:
    await fill(talk, "T", *[b"x" * 8000] * 40)
    store, engine = talk.broker.store, talk.broker.store._engine
    async with reads_of(talk, store=True) as read:
        await asyncio.to_thread(talk.broker.broker_store.removal.settle)
        await asyncio.to_thread(store.delete_expired, forced=True)
        engine.housekeeper._retention._used = lambda: 1.0
        housekeeper = engine.housekeeper
        housekeeper._retention._is_hour()
        housekeeper._retention._pressure()
        await asyncio.to_thread(housekeeper._retention.round)
        await asyncio.to_thread(housekeeper.round)
        housekeeper._is_time_to_finish(0.0)
        ordinary = housekeeper._is_time_to_finish
        housekeeper._is_time_to_finish = lambda waited_ms: False  # type: ignore[method-assign]
        housekeeper._last_clean = float("-inf")
        await asyncio.to_thread(housekeeper.round)
        housekeeper._is_time_to_finish = ordinary  # type: ignore[method-assign]
        assert set(CLEANED) - read == set()


REPLICATED = (
    *("in_sync_replicas", "auto_in_sync_replicas", "min_in_sync_replicas"),
    *("slave_timeout_ms", "max_gap_not_in_sync"),
)
SYNC_MASTER = SMALL.replace(role=BrokerRole.SYNC_MASTER, in_sync_replicas=1)


@of_store(*REPLICATED, store=SYNC_MASTER)
async def _a_put_needs_more_copies(talk: Talk) -> None:
    assert (await talk.send("T")).code == 0
    await change(talk, in_sync_replicas=2)
    assert (await talk.send("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    await change(talk, auto_in_sync_replicas=True)
    assert (await talk.send("T")).code == 0
    await change(talk, min_in_sync_replicas=2, slave_timeout_ms=10)
    assert (await talk.send("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    acks = talk.broker.broker_store.replica_acks
    assert acks.is_in_sync(0, 1000)
    await change(talk, max_gap_not_in_sync=1000)
    assert not acks.is_in_sync(0, 1000)


@of_broker("permission")
async def _the_broker_becomes_unreadable(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    await change(talk, permission=2)
    assert (await talk.pull("T")).code == ResponseCode.NO_PERMISSION


@of_broker("log_level")
async def _fewer_events_are_logged(talk: Talk) -> None:
    await change(talk, log_level=LogLevel.ERROR)
    assert logging.getLogger("firetrail").level == logging.ERROR


@of_broker("auto_create_topics")
async def _no_topic_is_created(talk: Talk) -> None:
    assert (await talk.send("T")).code == 0
    await change(talk, auto_create_topics=False)
    assert (await talk.send("U")).code == ResponseCode.TOPIC_NOT_EXIST


@of_broker("auto_create_groups")
async def _no_group_is_created(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    await change(talk, auto_create_groups=False)
    answer = await talk.pull("T", consumerGroup="NEW")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@of_broker("default_topic_queues")
async def _new_topics_have_other_queues(talk: Talk) -> None:
    await change(talk, default_topic_queues=3)
    await talk.send("T", d=99)
    topic = talk.broker.topics.get("T")
    assert topic is not None and topic.write_queue_nums == 3


@of_broker("mixed_topics")
async def _topics_cannot_be_mixed(talk: Talk) -> None:
    fields: Fields = {
        **{"defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
        **{"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"},
        "attributes": "+message.type=MIXED",
    }
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert (await talk.ask(code, fields, topic="A")).code == 0
    await change(talk, mixed_topics=False)
    assert (await talk.ask(code, fields, topic="B")).code != 0


@of_broker("long_polling", "short_polling_ms")
async def _pulls_wait_for_a_shorter_time(talk: Talk) -> None:
    talk.broker.topics.put([TopicConfig("T")])
    await change(talk, long_polling=False, short_polling_ms=10)
    flag = SUSPEND | SUBSCRIPTION
    answer = await talk.pull("T", sysFlag=flag, suspendTimeoutMillis=600_000)
    assert answer.code == ResponseCode.PULL_NOT_FOUND


@of_broker("client_expiry_ms")
async def _clients_expire_sooner(talk: Talk) -> None:
    await talk.beat("CG")
    async with reads_of(talk, store=False) as read:
        talk.broker.clients.expire()
        assert "client_expiry_ms" in read


@of_broker("property_filter")
async def _sql_is_refused(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    sql = "TAGS = 'A'"
    for _ in range(2):
        assert (await talk.pull("T", subscription=sql, expressionType=BY_SQL)).code == 0
    await change(talk, property_filter=False)
    assert (
        await talk.pull("T", subscription=sql, expressionType=BY_SQL)
    ).code == ResponseCode.SYSTEM_ERROR


@of_broker("reject_transactions")
async def _half_messages_are_refused(talk: Talk) -> None:
    assert (await begin(talk)).code == 0
    await change(talk, reject_transactions=True)
    assert (await begin(talk)).code == ResponseCode.NO_PERMISSION


@of_broker("open_transactions_max")
async def _fewer_transactions_may_be_open(talk: Talk) -> None:
    assert (await begin(talk)).code == 0
    await change(talk, open_transactions_max=1)
    assert (await begin(talk)).code == ResponseCode.SYSTEM_BUSY


CHECKED = ("transaction_timeout_ms", "transaction_check_max")


@of_broker(*CHECKED)
async def _half_messages_are_checked_by_new_rules(talk: Talk) -> None:
    await begin(talk)
    await asyncio.to_thread(talk.broker.store.wait_dispatched)
    await change(talk, transaction_timeout_ms=1)
    async with reads_of(talk, store=False) as read:
        await asyncio.sleep(0.01)
        await talk.broker._parts.transactions.check()
        await until(lambda: read.issuperset(CHECKED))


REPEATED = ("offsets_interval_ms", "delay_interval_ms", "transaction_check_interval_ms")


@of_broker("register_interval_ms")
async def _the_next_registration_is_sooner(talk: Talk) -> None:
    async with reads_of(talk, store=False) as read:
        talk.broker._parts.registration._next_due()
        assert "register_interval_ms" in read


@of_broker(*REPEATED)
async def _the_pauses_are_read_again(talk: Talk) -> None:
    async with reads_of(talk, store=False) as read:
        await until(lambda: read.issuperset(REPEATED))


@of_broker("server_side_reset")
async def _resets_are_announced_in_another_way(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    await talk.beat("CG", subscriptions={"T": "*"})
    await talk.commit(1, topic="T")
    async with reads_of(talk, store=False) as read:
        await talk.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic="T",
            group="CG",
            timestamp=0,
            isForce="true",
        )
        assert "server_side_reset" in read


def at_second(seconds: int) -> str:
    return f"UNIQ_KEY\x01U1\x02TIMER_DELAY_SEC\x01{seconds}\x02"


@of_broker("timer_max_delay_s")
async def _delays_must_be_shorter(talk: Talk) -> None:
    assert (await talk.send("T", i=at_second(100))).code == 0
    await change(talk, timer_max_delay_s=50)
    assert (await talk.send("T", i=at_second(100))).code == ResponseCode.MESSAGE_ILLEGAL


@of_broker("timer_congestion")
async def _a_slot_has_room_for_fewer(talk: Talk) -> None:
    async with reads_of(talk, store=False) as read:
        await talk.send("T", i=at_second(100))
        assert "timer_congestion" in read


@of_broker("recall", "recall_when_read_only")
async def _recalls_are_refused(talk: Talk) -> None:
    handle = (await talk.send("T", i=at_second(100))).fields["recallHandle"]
    fields = {"producerGroup": "PG", "topic": "T", "recallHandle": handle}
    await change(talk, permission=4)
    assert (await talk.ask(RequestCode.RECALL_MESSAGE, fields)).code == 0
    await change(talk, recall_when_read_only=False)
    assert (await talk.ask(RequestCode.RECALL_MESSAGE, fields)).code != 0
    await change(talk, permission=6)
    assert (await talk.ask(RequestCode.RECALL_MESSAGE, fields)).code == 0
    await change(talk, recall=False)
    assert (await talk.ask(RequestCode.RECALL_MESSAGE, fields)).code != 0


@of_broker("slave_read")
async def _a_slave_serves_pulls(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    await talk.broker.become(BrokerRole.SLAVE, 1)
    assert (await talk.pull("T")).code == ResponseCode.SYSTEM_BUSY
    await change(talk, slave_read=True)
    assert (await talk.pull("T")).code == 0


@of_broker("sync_interval_ms")
async def _a_slave_copies_tables_at_another_pace(talk: Talk) -> None:
    master = talk.broker.address
    config = BrokerConfig(broker_id=1, master_address=master, sync_interval_ms=10)
    async with (
        talking(None, config, SMALL.replace(role=BrokerRole.SLAVE)) as slave,
        reads_of(slave, store=False) as read,
    ):
        await until(lambda: "sync_interval_ms" in read)


@of_store("verify_reads")
async def _every_pull_asks_whether_it_verifies(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    async with reads_of(talk, store=True) as read:
        await talk.pull("T")
        assert "verify_reads" in read


@of_store("repair_wait_ms")
async def _consumers_no_longer_wait_for_a_repair(talk: Talk) -> None:
    ledger, clock = talk.broker.broker_store.damage, talk.broker._parts.state.system.clock
    error = StoreDamagedError("commitlog/0", 0, 0, "it is altered", "repair it")
    place = DamagedPlace(0, error, clock.monotonic())
    assert not ledger.is_overdue(place)
    await change(talk, repair_wait_ms=0)
    assert ledger.is_overdue(place)


@of_store("scrub_bytes_per_second")
async def _the_scrub_stops(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    scrub = ScrubService(talk.broker.broker_store)
    assert await scrub.step() != OFF_S
    await change(talk, scrub_bytes_per_second=0)
    assert await scrub.step() == OFF_S


@of_broker("ha_flow_control", "ha_max_bytes_per_second")
async def _replicas_get_less_per_second(talk: Talk) -> None:
    ha = talk.broker._term.ha
    assert ha is not None
    rate = ha._source.limits.rate
    assert rate() is None
    await change(talk, ha_flow_control=True, ha_max_bytes_per_second=7_000_000)
    assert rate() == 7_000_000


@of_broker("ha_allowed_peers")
async def _other_peers_are_allowed(talk: Talk) -> None:
    clock = talk.broker._parts.state.system.clock

    async def nobody() -> list[str]:
        return []

    peers = HAPeers(talk.broker._live, talk.broker.address, nobody, clock)
    assert peers.refusal("127.0.0.1") == ""
    await change(talk, ha_allowed_peers="192.0.2.0/24")
    assert "is not among ha_allowed_peers" in peers.refusal("127.0.0.1")


@of_broker("auto_topics_max", "auto_groups_max", "auto_create_rate")
async def _fewer_names_are_created(talk: Talk) -> None:
    await change(talk, auto_topics_max=1, auto_groups_max=1)
    assert (await talk.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
    answer = await talk.pull("BenchmarkTest", consumerGroup="NEW")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    await change(talk, auto_topics_max=50_000)
    async with reads_of(talk, store=False) as read:
        await talk.send("T")
        assert "auto_create_rate" in read


@of_broker("offsets_max")
async def _fewer_offsets_are_kept(talk: Talk) -> None:
    await fill(talk, "T", b"x")
    assert (await talk.commit(1, topic="T")).code == 0
    await change(talk, offsets_max=1)
    assert (await talk.commit(1, topic="T", queue_id=1)).code != 0


def live(table: Any) -> set[str]:
    return {setting.name for setting in table.SETTINGS.values() if setting.live}


@pytest.mark.parametrize("name", sorted(live(store_config)))
async def test_a_live_setting_of_the_store_takes_effect(name: str) -> None:
    assert name in STORE, f"{name} is declared live: write a check that changes it"
    config, check = STORE[name]
    async with talking(None, QUICK, config) as talk:
        await check(talk)


@pytest.mark.parametrize("name", sorted(live(broker_config)))
async def test_a_live_setting_of_the_broker_takes_effect(name: str) -> None:
    assert name in BROKER, f"{name} is declared live: write a check that changes it"
    async with talking(None, QUICK) as talk:
        await BROKER[name](talk)
