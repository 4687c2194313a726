"""Everything that hands out messages refuses the same groups, topics and situations."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from tests.broker.brokers import SUBSCRIPTION, SUSPEND, Talk, talking
from tests.broker.pops import ask_pop, fill

from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.messages.bodies import (
    LockBody,
    MessageQueue,
    QueryAssignmentBody,
    SubscriptionGroupConfig,
    TopicConfig,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import BrokerRole

WAIT_MS = 20_000
Ask = Callable[[Talk, str, int, int], Awaitable[RemotingCommand]]
"""Takes a topic, a queue, and how long the request may wait in ms."""


async def pull(talk: Talk, topic: str, queue_id: int, wait_ms: int) -> RemotingCommand:
    flag = SUBSCRIPTION | (SUSPEND if wait_ms else 0)
    end = talk.broker.store.max_offset(topic, max(queue_id, 0)) if wait_ms else 0
    return await talk.pull(topic, end, queueId=queue_id, sysFlag=flag, suspendTimeoutMillis=wait_ms)


async def lite_pull(talk: Talk, topic: str, queue_id: int, wait_ms: int) -> RemotingCommand:
    return await talk.ask(
        RequestCode.LITE_PULL_MESSAGE,
        consumerGroup="CG",
        topic=topic,
        queueId=queue_id,
        queueOffset=talk.broker.store.max_offset(topic, max(queue_id, 0)) if wait_ms else 0,
        maxMsgNums=32,
        sysFlag=SUBSCRIPTION | (SUSPEND if wait_ms else 0),
        commitOffset=0,
        suspendTimeoutMillis=wait_ms,
        subscription="*",
        subVersion=0,
    )


async def pop(talk: Talk, topic: str, queue_id: int, wait_ms: int) -> RemotingCommand:
    return await ask_pop(talk, topic=topic, queueId=queue_id, pollTime=wait_ms, initMode=1)


async def peek(talk: Talk, topic: str, queue_id: int, wait_ms: int) -> RemotingCommand:
    return await talk.ask(
        RequestCode.PEEK_MESSAGE, consumerGroup="CG", topic=topic, queueId=queue_id, maxMsgNums=32
    )


async def notification(talk: Talk, topic: str, queue_id: int, wait_ms: int) -> RemotingCommand:
    return await talk.ask(
        RequestCode.NOTIFICATION,
        consumerGroup="CG",
        topic=topic,
        queueId=queue_id,
        pollTime=wait_ms,
        bornTime=0,
    )


ALL: list[Ask] = [pull, lite_pull, pop, peek, notification]
WAITING: list[Ask] = [pull, lite_pull, pop, notification]
Situation = Callable[[Talk], object]
NO_PERMISSION = ResponseCode.NO_PERMISSION
every_request = pytest.mark.parametrize("ask", ALL, ids=lambda ask: ask.__name__)


def make_live(talk: Talk, **changes: object) -> None:
    talk.broker._live.current = talk.broker.config.replace(**changes)


SITUATIONS: list[tuple[str, Situation, ResponseCode]] = [
    (
        "subscription group no permission, CG",
        lambda talk: talk.broker.groups.put([SubscriptionGroupConfig("CG", consume_enable=False)]),
        NO_PERMISSION,
    ),
    (
        "the consumer group[CG] is forbidden for topic[T]",
        lambda talk: talk.broker.groups.forbid("CG", "T", True),
        NO_PERMISSION,
    ),
    (
        "the topic[T] pulling message is forbidden",
        lambda talk: talk.broker.topics.put([TopicConfig("T", perm=2)]),
        NO_PERMISSION,
    ),
    ("the broker is not readable", lambda talk: make_live(talk, permission=2), NO_PERMISSION),
    (
        "queueId[0] is illegal, topic:[T] topicConfig.readQueueNums:[0]",
        lambda talk: talk.broker.topics.put([TopicConfig("T", 0, 4)]),
        ResponseCode.INVALID_PARAMETER,
    ),
]
rows = pytest.mark.parametrize(
    ("remark", "change", "code"), SITUATIONS, ids=[row[0].split(",")[0] for row in SITUATIONS]
)


@every_request
@rows
async def test_every_request_of_a_consumer_is_refused(
    ask: Ask, remark: str, change: Situation, code: ResponseCode, talk: Talk
) -> None:
    await fill(talk, "T", b"0")
    assert (await ask(talk, "T", 0, 0)).code in (0, ResponseCode.POLLING_TIMEOUT)
    change(talk)
    answer = await ask(talk, "T", 0, 0)
    assert (answer.code, answer.remark) == (code, remark)


@pytest.mark.parametrize("ask", WAITING, ids=lambda ask: ask.__name__)
@rows
async def test_a_waiting_request_is_checked_again(
    ask: Ask, remark: str, change: Situation, code: ResponseCode, talk: Talk
) -> None:
    talk.broker.topics.put([TopicConfig("T")])
    waiting = asyncio.ensure_future(ask(talk, "T", 0, WAIT_MS))
    while not talk.broker._term.parts.state.long_polling._held:
        await asyncio.sleep(0.005)
    change(talk)
    await talk.send("T", e=0)
    answer = await waiting
    assert (answer.code, answer.remark) == (code, remark)


@every_request
@pytest.mark.parametrize("queue_id", [4, 99])
async def test_a_missing_queue(ask: Ask, queue_id: int, talk: Talk) -> None:
    talk.broker.topics.put([TopicConfig("T", 4, 4)])
    answer = await ask(talk, "T", queue_id, 0)
    assert answer.code == ResponseCode.INVALID_PARAMETER


@every_request
async def test_a_missing_topic(ask: Ask, talk: Talk) -> None:
    assert (await ask(talk, "NONE", 0, 0)).code == ResponseCode.TOPIC_NOT_EXIST


@every_request
async def test_a_slave_serves_nobody_unless_it_is_told_to(ask: Ask, talk: Talk) -> None:
    await fill(talk, "T", b"0")
    await talk.broker.become(BrokerRole.SLAVE, 1)
    answer = await ask(talk, "T", 0, 0)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (answer.remark or "").startswith("[REJECTREQUEST]system busy: this broker is a slave")


@every_request
async def test_a_diverged_replica_serves_nobody(ask: Ask) -> None:
    async with talking(config=BrokerConfig(slave_read=True)) as talk:
        await fill(talk, "T", b"0")
        await talk.broker.become(BrokerRole.SLAVE, 1)
        if ask is not pop:  # slaves never pop
            assert (await ask(talk, "T", 0, 0)).code == 0
        follower = SimpleNamespace(divergence="their records differ")
        talk.broker._term.replica = SimpleNamespace(follower=follower)  # type: ignore[assignment]
        answer = await ask(talk, "T", 0, 0)
        talk.broker._term.replica = None
        assert answer.code == ResponseCode.SYSTEM_BUSY
        if ask is not pop:
            assert answer.remark == (
                "this replica has diverged from its master, and serves no messages until it is "
                "rewound: their records differ"
            )


@rows
async def test_locks_are_granted_all_the_same(
    remark: str, change: Situation, code: ResponseCode, talk: Talk
) -> None:
    """As in RocketMQ: a lock hands out no messages, and the pull that follows is refused."""
    await fill(talk, "T", b"0")
    change(talk)
    body = LockBody("CG", "c1", [MessageQueue("T", "broker-a", 0)]).encode()
    answer = await talk.ask(RequestCode.LOCK_BATCH_MQ, body=body)
    assert answer.code == 0 and b'"queueId":0' in answer.content


@rows
@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
async def test_assignments_are_answered_all_the_same(
    strategy: str, remark: str, change: Situation, code: ResponseCode, talk: Talk
) -> None:
    """As in RocketMQ: the queues of the route are divided among the consumers of a group, which
    hands out no messages, and the requests that follow are refused."""
    await fill(talk, "T", b"0")
    await talk.beat("CG", client_id="c1", subscriptions={"T": "*"})
    change(talk)
    body = QueryAssignmentBody("T", "CG", "c1", strategy).encode()
    answer = await talk.ask(RequestCode.QUERY_ASSIGNMENT, body=body)
    assert answer.code == 0
