"""System topics are special in the same ways to all who decide on topics."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.proxy.services import code, message
from tests.rules.ways import Ways, all_ways
from tests.stores import list_topics

from firetrail.access.implied_permissions import topic_need
from firetrail.auth.resources import Action
from firetrail.format.names import OFFSET_MAX
from firetrail.format.system_topics import SYSTEM_TOPICS, own_topics
from firetrail.remoting.messages.bodies import TopicList
from firetrail.remoting.wire.codes import RequestCode
from firetrail.store.evidence.catalog import Catalog
from firetrail.store.evidence.inventory import ListedQueues
from firetrail.system import SYSTEM

OPEN, INTERNAL, FIXED, RESERVED = "open", "internal", "fixed", "reserved"
"""Clients may send to it; it holds records of brokers; administrators cannot change it; gRPC
clients cannot use it."""
RECORDS = {INTERNAL, FIXED, RESERVED}
TOPICS = {
    "TBW102": {OPEN, FIXED, RESERVED},
    "BenchmarkTest": {OPEN, FIXED, RESERVED},
    "CHECKPOINT_TOPIC": {OPEN, FIXED, RESERVED},
    "SELF_TEST_TOPIC": {FIXED, RESERVED},
    "SCHEDULE_TOPIC_XXXX": RECORDS,
    "rmq_sys_wheel_timer": RECORDS,
    "RMQ_SYS_TRANS_HALF_TOPIC": RECORDS,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": RECORDS,
    "TRANS_CHECK_MAX_TIME_TOPIC": RECORDS,
    "OFFSET_MOVED_EVENT": RECORDS,
    "RMQ_SYS_TRACE_TOPIC": {OPEN, RESERVED},
    "rmq_sys_REVIVE_LOG_DefaultCluster": RECORDS,  # of this broker, which only it writes
    "rmq_sys_other": {OPEN, *RECORDS},
    "Rmq_Sys_other": {OPEN, *RECORDS},
    "DefaultCluster": {OPEN, FIXED, RESERVED},
    "broker-a": {OPEN, FIXED, RESERVED},
    "DefaultCluster_REPLY_TOPIC": {OPEN, FIXED, RESERVED},
    "rmq_sys": {OPEN},
    "orders": {OPEN},
    "%RETRY%g": {OPEN},
}


@pytest.fixture
async def ways(tmp_path: Path) -> AsyncIterator[Ways]:
    async with all_ways(tmp_path / "broker") as ways:
        yield ways


def having(trait: str) -> set[str]:
    return {name for name, traits in TOPICS.items() if trait in traits}


def test_every_system_topic_has_an_expectation() -> None:
    assert own_topics("DefaultCluster", "broker-a").union(SYSTEM_TOPICS) <= set(TOPICS)


async def test_topics_to_which_clients_may_send(ways: Ways) -> None:
    assert {name for name in TOPICS if (await ways.talk.send(name)).code == 0} == having(OPEN)


async def test_topics_that_grpc_clients_cannot_use(ways: Ways) -> None:
    refused = set()
    for name in TOPICS:
        if code(await ways.service.send(message(topic=name))) == "ILLEGAL_TOPIC":
            refused.add(name)
    assert refused == having(RESERVED)


async def test_topics_that_administrators_cannot_change(ways: Ways) -> None:
    refusals: list[set[str]] = [set(), set()]
    fields = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    fields |= {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    for name in TOPICS:
        create = ways.talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, topic=name)
        delete = ways.talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
        for refused, change in zip(refusals, (create, delete), strict=True):
            answer = await change
            if answer.code != 0:
                assert "is conflict with system topic" in (answer.remark or "")
                refused.add(name)
    assert refusals == [having(FIXED)] * 2
    answer = await ways.talk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    listed = set(TopicList.decode(answer.content).topic_list)
    assert listed == having(FIXED) - {"rmq_sys_other", "Rmq_Sys_other"}


def test_topics_that_hold_records_of_brokers(tmp_path: Path) -> None:
    """A permission for them has their very name, and a list that lacks them proves nothing.

    The records of any other topic that a newer list lacks are of a deleted one: they do not come
    back when the store is opened.
    """
    list_topics(tmp_path, "other")
    known = ListedQueues(frozenset(), 0, {})
    catalog = Catalog(SYSTEM.files, tmp_path, [], lambda _: 1, known)
    kept = {name for name in TOPICS if not catalog.is_deleted(name, OFFSET_MAX - 1)}
    explicit = {name for name in TOPICS if topic_need(name, Action.SUB).explicit == name}
    assert kept == explicit == having(INTERNAL)
