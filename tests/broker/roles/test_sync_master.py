"""A broker as SYNC_MASTER: what producers are told, and what consumers see."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, SUBSCRIPTION, SUSPEND, Fields, Talk, records, talking
from tests.broker.halves import COMMIT, ROLLBACK, begin
from tests.broker.pairs import status
from tests.broker.pops import ask_pop, popped
from tests.client.clusters import until
from tests.helpers import PATIENCE_S, FaultyFiles
from tests.replication.followers import following

from firetrail import FlushMode, Message
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Outcome, Producer, SendStatus
from firetrail.client.messages.send_requests import SEND_S
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.system_topics import HALF_TOPIC
from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import SYSTEM, System

MASTER = SMALL.replace(role=BrokerRole.SYNC_MASTER, slave_timeout_ms=int(PATIENCE_S * 1000))
IMPATIENT = MASTER.replace(slave_timeout_ms=20)
REPLICA = SMALL.replace(role=BrokerRole.SLAVE)
CONFIG = BrokerConfig(ha_heartbeat_ms=50)
ALONE = ResponseCode.SLAVE_NOT_AVAILABLE
LATE = ResponseCode.FLUSH_SLAVE_TIMEOUT
SLOW_DISK = ResponseCode.FLUSH_DISK_TIMEOUT


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    """A client of a SYNC_MASTER without replicas."""
    async with talking(config=CONFIG, store=MASTER) as talk:
        yield talk


@asynccontextmanager
async def replicated(talk: Talk, folder: Path) -> AsyncIterator[BrokerStore]:
    """A replica that has everything, until the end of the block."""
    store, acks = talk.broker.store, talk.broker.broker_store.replica_acks
    with following(folder, talk.broker.config.ha_address, REPLICA) as replica:
        await until(lambda: acks.in_sync(0) == 1)
        await until(lambda: replica.embedded.log_range == store.log_range)
        yield replica
    await until(lambda: acks.in_sync(0) == 0)


def stall(talk: Talk) -> None:
    """Pretend that a replica is connected that confirms nothing."""
    talk.broker.broker_store.replica_acks.note("stalled", 0)


async def visible(talk: Talk, topic: str = "T1") -> list[bytes]:
    return [record.body for record in records((await talk.pull(topic)).content)]


def batch(*bodies: bytes) -> bytes:
    return encode_batch(BatchItem(0, body, b"") for body in bodies)


# -- producers --------------------------------------------------------------------------------


async def send_v1(talk: Talk) -> int:
    answer = await talk.ask(
        RequestCode.SEND_MESSAGE,
        body=b"hello",
        producerGroup="PG",
        topic="T1",
        defaultTopic="TBW102",
        defaultTopicQueueNums=4,
        queueId=0,
        sysFlag=0,
        bornTimestamp=1_700_000_000_000,
        flag=0,
    )
    return answer.code


async def send_v2(talk: Talk) -> int:
    return (await talk.send("T1")).code


async def send_batch(talk: Talk) -> int:
    code = RequestCode.SEND_BATCH_MESSAGE
    return (await talk.send("T1", batch(b"1", b"2"), code=code, i="", m="true")).code


async def send_delayed(talk: Talk) -> int:
    return (await talk.send("T1", i="DELAY\x011\x02")).code


async def send_half(talk: Talk) -> int:
    return (await begin(talk)).code


SENDS = [send_v1, send_v2, send_batch, send_delayed, send_half]


@pytest.mark.parametrize("send", SENDS)
async def test_a_producer_is_told_how_safe_its_message_is(send, talk: Talk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert await send(talk) == ALONE
    async with replicated(talk, tmp_path):
        assert await send(talk) == ResponseCode.SUCCESS
    talk.broker.broker_store.configure(slave_timeout_ms=20)
    stall(talk)
    assert await send(talk) == LATE


@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
async def test_a_producer_is_told_that_the_disk_is_slow(role: BrokerRole, tmp_path: Path) -> None:
    """With SYNC_FLUSH. The disk comes before the replicas, which a SYNC_MASTER lacks here."""
    files = FaultyFiles()
    system = System(files, SYSTEM.clock, SYSTEM.memory_bytes)
    store = SMALL.replace(
        role=role,
        flush=FlushMode.SYNC,
        sync_flush_timeout_ms=20,
        store_host=SMALL.store_host._replace(port=0),
    )
    broker, client = Broker(tmp_path, CONFIG, store, system=system), RemotingClient()
    await broker.start()
    try:
        talk = Talk(broker, client)
        await talk.send("T1", i="WAIT\x01false\x02")  # it creates the files
        with files.stalled("sync", "commitlog"):
            assert [await send(talk) for send in SENDS] == [SLOW_DISK] * len(SENDS)
        await until(lambda: broker.store.flushed_offset == broker.store.log_range[1])
    finally:
        await client.close()
        await broker.stop()


async def test_an_answer_without_confirmation_says_where_the_message_is(talk: Talk) -> None:
    answer = await talk.send("T1")
    assert answer.remark == (
        "stored, but not confirmed: 0 of 1 required replicas in sync; consumers get the message "
        "when enough replicas have confirmed it"
    )
    assert answer.fields["queueOffset"] == "0"
    offset = decode_message_id(answer.fields["msgId"]).physical_offset
    assert talk.broker.broker_store.reads.buffer_at(offset) is not None


async def test_a_message_that_does_not_wait_needs_no_replica(talk: Talk) -> None:
    assert (await talk.send("T1", i="WAIT\x01false\x02")).code == ResponseCode.SUCCESS
    assert await visible(talk) == []


async def test_many_producers_wait_at_the_same_time(talk: Talk, tmp_path: Path) -> None:
    async with replicated(talk, tmp_path) as replica:
        answers = await asyncio.gather(*(talk.send("T1", b"%d" % n) for n in range(100)))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert replica.embedded.log_range == talk.broker.store.log_range


async def test_the_client_reports_the_status_and_rolls_back_unsafe_transactions() -> None:
    async with talking(config=CONFIG, store=MASTER) as talk:
        decided: list[Message] = []

        def decide(message: Message) -> Outcome:
            decided.append(message)
            return Outcome.COMMIT

        async with Producer(talk.broker.namesrv, "PG") as producer:
            result = await producer.send(Message("T1", b"hello"))
            assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
            half = await producer.send_in_transaction(Message("T1", b"half"), decide)
            assert half.status is SendStatus.SLAVE_NOT_AVAILABLE
        assert not decided
        await until(lambda: not talk.broker._parts.transactions._open)


async def test_a_producer_waits_longer_than_the_broker_waits_for_a_slow_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer that gave up first would store a second copy."""
    settings = SMALL.replace(role=BrokerRole.SYNC_MASTER)
    loop = asyncio.get_running_loop()
    async with (
        talking(config=CONFIG, store=settings) as talk,
        Producer(talk.broker.namesrv, "PG") as producer,
    ):
        stall(talk)
        parts = talk.broker.broker_store
        sending = asyncio.ensure_future(producer.send(Message("T1", b"once")))
        await until(lambda: bool(parts.replica_acks._waiters))
        real_time, skipped_s = loop.time, settings.slave_timeout_ms / 1000
        monkeypatch.setattr(loop, "time", lambda: real_time() + skipped_s)
        assert (await sending).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        assert sum(parts.queues.numbered_end("T1", queue) for queue in range(8)) == 1


def test_a_client_waits_longer_than_a_broker_waits_for_its_disk_and_replicas() -> None:
    settings = StoreConfig()
    assert settings.sync_flush_timeout_ms + settings.slave_timeout_ms < SEND_S * 1000


# -- consumers --------------------------------------------------------------------------------


async def test_consumers_see_what_replicas_have(talk: Talk, tmp_path: Path) -> None:
    await talk.send("T1", b"one")
    assert await visible(talk) == []
    held = asyncio.ensure_future(talk.pull("T1", 0, sysFlag=SUSPEND | SUBSCRIPTION))
    popping = asyncio.ensure_future(ask_pop(talk, pollTime=int(PATIENCE_S * 1000)))
    asked: Fields = {"topic": "T1", "key": "k1", "maxNum": 10, "beginTimestamp": 0}
    asked["endTimestamp"] = 1 << 60
    query = RequestCode.QUERY_MESSAGE
    assert (await talk.ask(query, asked)).code == ResponseCode.QUERY_NOT_FOUND
    end = await talk.ask(RequestCode.GET_MAX_OFFSET, topic="T1", queueId=0)
    assert end.fields["offset"] == "0"
    assert not held.done()
    assert not popping.done()
    async with replicated(talk, tmp_path):
        assert [record.body for record in records((await held).content)] == [b"one"]
        assert [one.body for one in popped(await popping)] == [b"one"]
        assert (await talk.ask(query, asked)).code == ResponseCode.SUCCESS


async def test_an_unconfirmed_message_can_be_viewed_by_its_id(talk: Talk) -> None:
    """Its producer knows the id, and replicas compare records in this way before they follow."""
    answer = await talk.send("T1", b"one")
    offset = decode_message_id(answer.fields["msgId"]).physical_offset
    viewed = await talk.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
    assert [record.body for record in records(viewed.content)] == [b"one"]


async def test_a_lost_replica_hides_new_messages_only(talk: Talk, tmp_path: Path) -> None:
    async with replicated(talk, tmp_path):
        await talk.send("T1", b"one")
    assert (await talk.send("T1", b"two")).code == ALONE
    assert await visible(talk) == [b"one"]
    async with replicated(talk, tmp_path):
        assert [r.body for r in await talk.pull_until("T1", 2)] == [b"one", b"two"]


async def test_the_status_tells_that_confirmations_are_overdue() -> None:
    """As with a replica whose process is stopped: its connection stays open."""
    async with talking(config=CONFIG, store=IMPATIENT) as talk:
        stall(talk)
        assert (await status(talk)).unconfirmed == ""
        assert (await talk.send("T1", b"one")).code == LATE
        await asyncio.sleep(IMPATIENT.slave_timeout_ms / 1000)
        assert re.fullmatch(
            r"replicas are connected, but have not confirmed what was stored \d+ s ago "
            r"\(slaveTimeout is 0\.02 s\)",
            (await status(talk)).unconfirmed,
        )
        talk.broker.broker_store.replica_acks.note("stalled", talk.broker.store.log_range[1])
        assert (await status(talk)).unconfirmed == ""


async def test_the_first_unconfirmed_message_may_begin_a_file(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, store, ends = talk.broker.broker_store, talk.broker.store, [0]
    while ends[-1] < SMALL.commit_log_file_size:
        put = store.try_put(Message("T1", bytes(500_000)))
        ends.append(store.log_range[1])
    parts.replica_acks.note("replica", ends[-2])  # the file is filled up from there on
    monkeypatch.setattr(store._engine.system.clock, "now_ms", lambda: put.store_time + 7)
    assert parts.log.unconfirmed_ms == 7
    parts.replica_acks.note("replica", ends[-1])
    assert parts.log.unconfirmed_ms == 0


async def test_consumers_may_be_served_without_replicas_by_a_setting(talk: Talk) -> None:
    await talk.send("T1", b"one")
    await talk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"inSyncReplicas=1")
    assert [record.body for record in await talk.pull_until("T1", 1)] == [b"one"]
    assert (await talk.send("T1")).code == ResponseCode.SUCCESS


# -- what the broker stores itself --------------------------------------------------------------


async def test_delayed_messages_are_delivered_without_waiting(talk: Talk, tmp_path: Path) -> None:
    async with replicated(talk, tmp_path):
        assert (await talk.send("T1", b"delayed", i="DELAY\x011\x02")).code == 0
        assert [record.body for record in await talk.pull_until("T1", 1)] == [b"delayed"]


async def ended(talk: Talk, half: RemotingCommand, decision: int) -> int:
    """End a transaction. Nothing waits for dispatch, because unconfirmed messages have to wait."""
    answer = await talk.ask(
        RequestCode.END_TRANSACTION,
        producerGroup="PG",
        tranStateTableOffset=half.fields["queueOffset"],
        commitLogOffset=decode_message_id(half.fields["msgId"]).physical_offset,
        commitOrRollback=decision,
    )
    return answer.code


async def test_a_transaction_ends_once_although_no_replica_confirms_it(
    talk: Talk, tmp_path: Path
) -> None:
    """A second end of the same transaction would deliver the message twice."""
    async with replicated(talk, tmp_path):
        half = await begin(talk)
    assert await ended(talk, half, COMMIT) == ALONE
    assert await ended(talk, half, COMMIT) == ResponseCode.SUCCESS
    async with replicated(talk, tmp_path):
        assert len(await talk.pull_until("T1", 1, queueId=2)) == 1
        await until(lambda: talk.broker.store.max_offset("T1", 2) == 1)
    assert not talk.broker._parts.transactions._open


async def test_a_rollback_is_recorded_without_replicas(talk: Talk) -> None:
    half = await begin(talk)
    assert half.code == ALONE
    assert await ended(talk, half, ROLLBACK) == ALONE
    assert not talk.broker._parts.transactions._open


async def test_unfinished_transactions_are_checked_without_replicas() -> None:
    config = CONFIG.replace(transaction_timeout_ms=1, transaction_check_max=1)
    async with talking(config=config, store=MASTER) as talk:
        await talk.beat(producer="PG")
        await begin(talk)
        await until(lambda: talk.broker._parts.transactions._open)
        await asyncio.sleep(0.002)
        await talk.broker.check_transactions()
        (half,) = talk.broker._parts.transactions._halves()
        assert half.checks == 1
        found = talk.broker.broker_store.reads.stored(half.physical_offset)
        assert found is not None and found.topic == HALF_TOPIC


async def test_pops_and_their_acknowledgements_work_without_replicas(
    talk: Talk, tmp_path: Path
) -> None:
    async with replicated(talk, tmp_path):
        await talk.send("T1", b"one")
        await talk.pull_until("T1", 1)
    (one,) = popped(await ask_pop(talk))
    assert one.body == b"one"
    acked = await talk.ask(
        RequestCode.ACK_MESSAGE,
        consumerGroup="CG",
        topic="T1",
        queueId=0,
        extraInfo=one.receipt.encode(),
        offset=0,
    )
    assert acked.code == ResponseCode.SUCCESS
    assert not list(talk.broker._parts.checkpoints.pops())


async def test_unacknowledged_pops_are_redelivered_without_waiting(
    talk: Talk, tmp_path: Path
) -> None:
    async with replicated(talk, tmp_path):
        await talk.send("T1", b"one")
        await talk.pull_until("T1", 1)
        assert popped(await ask_pop(talk, invisibleTime=1))
        (again,) = popped(await ask_pop(talk, pollTime=int(PATIENCE_S * 1000)))
        assert again.record.reconsume_times == 1


async def test_a_consumer_is_told_if_a_message_to_retry_is_not_confirmed(
    talk: Talk, tmp_path: Path
) -> None:
    await talk.beat("CG")
    async with replicated(talk, tmp_path):
        sent = await talk.send("T1", b"one")
        offset = decode_message_id(sent.fields["msgId"]).physical_offset
        back: Fields = {"group": "CG", "offset": offset, "delayLevel": 0, "originTopic": "T1"}
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        assert (await talk.ask(code, back)).code == ResponseCode.SUCCESS
    answer = await talk.ask(code, back)
    assert answer.code == ALONE
    assert "0 of 1 required replicas" in (answer.remark or "")
