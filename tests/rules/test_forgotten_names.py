"""A deleted topic or group leaves nothing: no table of the broker has its name any more.

Every request is sent with the names of a topic and of a group, so that every table gets entries.
Then both are deleted, and all objects of the broker are searched for the names. A new table that is
keyed by topics or groups makes the test fail until it is listed in ``Deletions``.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from tests.broker.brokers import SMALL, Talk, talking
from tests.broker.pops import ask_pop, fill
from tests.broker.test_every_request import ALL_GOOD, CHANGE_ROLES, GOOD_BODIES

from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.names import retry_topic
from firetrail.remoting.messages.requests import REQUESTS, RequestTarget
from firetrail.remoting.wire.codes import RequestCode

TOPIC, GROUP = "TheDeletedTopic", "TheDeletedGroup"
KEPT = {
    "clients": "what connected clients say; it ends with their connections",
    "traffic": "statistics of the last day",
    "long_polling": "requests that wait; they are checked again when they end",
    "registration": "routes, which are those of the topics at the last registration",
    "store": "the store; the test of deletions in tests/broker looks at its queues",
    "selector": "parsed expressions",
    "runtime": "reads the store",
}
"""Parts that may have the names, and why."""
COMMON = {
    "AssignmentProcessor._modes",
    "ConsumerFilters._topics",
    "GroupTable.forbidden",
    "OffsetTable._offsets",
    "OffsetTable._pulled",
    "OffsetTable._resets",
    "OrderedPops._batches",
    "PopCheckpoints._open",
    "TopicTable._topics",
}
BY_TOPIC = COMMON | {"RebalanceLockManager._held"}
BY_GROUP = BY_TOPIC | {"FairShares._of_groups", "GroupTable._groups"}
LEFT_OUT = CHANGE_ROLES | {
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
}


def renamed(content: bytes) -> bytes:
    return content.replace(b'"T1"', f'"{TOPIC}"'.encode()).replace(b'"CG"', f'"{GROUP}"'.encode())


async def ask_everything(talk: Talk) -> None:
    """Fill all tables with the two names."""
    fields = ALL_GOOD | {"topic": TOPIC, "b": TOPIC, "group": GROUP, "consumerGroup": GROUP}
    fields |= {"readable": "false", "commitOffset": "1", "pollTime": "0", "order": "false"}
    for topic in (TOPIC, "T1"):
        await fill(talk, topic, b"1", b"2", b"3", b"4")
    for group, topic in ((GROUP, TOPIC), (GROUP, "T1"), ("CG", TOPIC)):
        await talk.beat(group, f"{group}-{topic}", {topic: "a = 1"}, kind="SQL92")
        for order in (False, True):
            await ask_pop(talk, topic=topic, consumerGroup=group, order=order, maxMsgNums=1)
        await talk.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": topic, "group": group, "timestamp": 0, "isForce": True},
        )
        await ask_pop(talk, topic=topic, consumerGroup=group, order=True, maxMsgNums=1)
        await talk.pull(topic, consumerGroup=group)
    asked = []
    for code, row in REQUESTS.items():
        if row.target is RequestTarget.BROKER and code not in LEFT_OUT:
            known = GOOD_BODIES.get(RequestCode(code))
            body = renamed(known.encode(standard=True)) if known is not None else b""
            asked.append(asyncio.ensure_future(talk.ask(code, fields, body=body)))
    await asyncio.wait(asked, timeout=1)
    talk.broker.release_polls()
    await asyncio.gather(*asked)


def holders(part: Any, name: str) -> set[str]:
    """Return the attributes, by class, of what is reachable from a part that have a name."""
    seen: set[int] = set()
    found: set[str] = set()
    waiting: deque[tuple[str, Any]] = deque([("", part)])
    while waiting:
        where, each = waiting.popleft()
        if isinstance(each, str):
            if name in each:
                found.add(where)
        elif id(each) not in seen:
            seen.add(id(each))
            waiting += inside(where, each)
    return found


def inside(where: str, each: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object contains, with the attribute that it is reached by."""
    if isinstance(each, Mapping):
        for item in each.items():
            yield from ((where, part) for part in item)
    elif isinstance(each, list | tuple | set | frozenset | deque):
        yield from ((where, part) for part in each)
    elif type(each).__module__.startswith("firetrail."):
        for name in attributes(each):
            if name.lstrip("_") not in KEPT:
                yield where or label_of(each, name), getattr(each, name, None)


def label_of(each: Any, name: str) -> str:
    """Return the name of an attribute of a part; empty for one that only refers to parts."""
    value = getattr(each, name, None)
    is_table = isinstance(value, Mapping | list | set | deque)
    return f"{type(each).__name__}.{name}" if is_table else ""


def attributes(found: Any) -> set[str]:
    slots = (getattr(kind, "__slots__", ()) for kind in type(found).__mro__)
    named_slots = {name for each in slots for name in ((each,) if isinstance(each, str) else each)}
    return named_slots | set(getattr(found, "__dict__", {}))


async def test_no_table_has_the_names_of_a_deleted_topic_and_group() -> None:
    config = BrokerConfig(filter_bitmaps=True, property_filter=True)
    async with talking(None, config, SMALL.replace(extended_queues=True)) as talk:
        await ask_everything(talk)
        parts = talk.broker._parts
        assert holders(parts, TOPIC) == BY_TOPIC
        assert holders(parts, GROUP) == BY_GROUP
        answer = await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=TOPIC)
        assert (answer.code, answer.remark) == (0, None)
        assert holders(parts, TOPIC) == set()
        answer = await talk.ask(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=GROUP, cleanOffset=True
        )
        assert (answer.code, answer.remark) == (0, None)
        retry = retry_topic(GROUP)  # mqadmin deletes it as well
        assert (await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=retry)).code == 0
        assert holders(parts, GROUP) == set()
