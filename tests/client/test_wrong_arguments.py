"""Every argument of every public method of the clients, with values that it cannot have.

They are refused at once, before anything is sent, with an error that names the argument.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL
from tests.client.clusters import Heard, fill, received

from firetrail.broker.broker import Broker
from firetrail.client import (
    Admin,
    ConfigError,
    FormatError,
    IllegalMessageError,
    Message,
    MessageQueue,
    Outcome,
    Popped,
    Producer,
    PullConsumer,
    PushConsumer,
    RequestError,
    SimpleConsumer,
    WrongTypeError,
    by_sql,
    by_tags,
)
from firetrail.client.cluster.offsets import Offsets
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.pop.receipts import Receipt

NAMESRV = "127.0.0.1:9876"
QUEUE = MessageQueue("T", "broker-a", 0)
POPPED = Popped(QUEUE, received().record, Receipt(0, 0, 0, 0, "0", "broker-a", 0, 0))

TEXT: tuple[Any, ...] = (None, 5, b"T", "", ["T"])
SOME_TEXT: tuple[Any, ...] = (None, 5, b"T", ["T"])
"""Values that are not text; empty text is allowed."""
OR_NONE: tuple[Any, ...] = (5, b"T", "")
COUNT: tuple[Any, ...] = (None, 1.5, "1", True, 0, -1, nan, 2**63)
NUMBER: tuple[Any, ...] = (None, 1.5, "0", True, -1, 2**63, 10**5000)
NUMBER_OR_NONE = NUMBER[1:]
SECONDS: tuple[Any, ...] = (None, "3", True, -1, nan, inf, 1e300)
MORE_THAN_0: tuple[Any, ...] = (*SECONDS, 0)
BOOL: tuple[Any, ...] = (None, 0, 1, "yes")
FUNCTION: tuple[Any, ...] = (5, "listen")
ADDRESS: tuple[Any, ...] = (None, 5, "", "host", "host:port", "host:0", b"h:1")
MESSAGE: tuple[Any, ...] = (
    *(None, b"body", "T", [Message("T", b"")]),
    *(Message("a b", b""), Message("T", b"", delay_level=-1)),
    Message("T", b"", keys=["a", ""]),
    Message("T", b"", keys=[1]),  # type: ignore[list-item]
    Message("T", b"", properties={"a": 1}),  # type: ignore[dict-item]
    *(Message("T", b"", flag=2**31), Message("T", b"", raw_properties=b"a\x01\xff\x02")),
)
QUEUES: tuple[Any, ...] = (
    *(5, "T", ("T", "broker-a", 0), MessageQueue("T", "broker-a", -1)),
    *(MessageQueue("T", "broker-a", True), MessageQueue("T", None, 0)),  # type: ignore[arg-type]
    MessageQueue(None, "broker-a", 0),  # type: ignore[arg-type]
)
SUBSCRIPTION: tuple[Any, ...] = (5, "*", by_tags("U"))
TOPICS: tuple[Any, ...] = (
    *(None, {}, "T", ["T"], {"T": None}, {"T": 5}, {5: "*"}, {"T": by_tags("U")}),
    *({"a b": "*"}, {"": "*"}, {"T": "||"}),
)
GROUP: tuple[Any, ...] = (None, 5, "", "a b", "g" * 121)
KV = {"namespace": TEXT, "key": TEXT}
WHERE = {"cluster": (5, "", b"C"), "address": (5, "", "nowhere", "a:x")}
TEXTS: tuple[Any, ...] = (None, 5, "Topic:T", b"Topic:T", [5], [None])
CONSUMER: dict[str, tuple[Any, ...]] = {
    "namesrv": (*ADDRESS, [], [5], [None]),
    "group": GROUP,
    "topics": TOPICS,
    "start": (None, 0, "first"),
    "access": (0, "alice"),
}

GOOD: dict[str, Any] = {
    "namesrv": NAMESRV,
    "group": "G",
    "listener": Heard(),
    "topics": {"T": "*"},
    "topic": "T",
    "message": Message("T", b""),
    "messages": [Message("T", b"")],
    "decide": lambda message: Outcome.COMMIT,
    "items": encode_batch([BatchItem(0, b"", b"")]),
    "request": received(),
    "body": b"",
    "queue": QUEUE,
    "offset": 0,
    "offsets": {QUEUE: 0},
    "invisible_s": 30,
    "address": NAMESRV,
    "settings": {"a": "b"},
    "broker_name": "broker-a",
    "writable": True,
    "timestamp_ms": 0,
    "key": "k",
    "offset_message_id": "0" * 32,
    "namespace": "n",
    "value": "v",
    "name": "alice",
    "password": "a-long-password",
    "resources": ["Topic:T"],
    "actions": ["Pub"],
    "expression": "a > 1",
}
"""Valid values for required parameters that are not under test."""
SPECIAL: dict[str, dict[str, Any]] = {
    "PushConsumer.consume_now": {"message": received()},
    "SimpleConsumer.change_invisible": {"message": POPPED},
}

WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "Producer": {
        **{name: CONSUMER[name] for name in ("namesrv", "group", "access")},
        **{"retries": NUMBER, "timeout_s": MORE_THAN_0, "check": FUNCTION},
    },
    "Producer.send": {
        **{"message": MESSAGE, "queue": QUEUES, "order_key": (5, b"k", ["k"])},
        **{"deliver_at": (5, 1.5, True, "noon", timedelta(-1))},
    },
    "Producer.recall": {"sent": (None, 5, "", b"handle")},
    "Producer.send_batch": {
        "messages": (
            *(None, Message("T", b""), (each for each in [Message("T", b"")]), [], "T", [5]),
            *([Message("T", b""), None], {"T": 1}),
        ),
        "queue": QUEUES,
    },
    "Producer.send_encoded": {
        **{"topic": (*TEXT, "a b"), "items": (None, "items", b"", bytes(5))},
        **{"queue": (None, *QUEUES), "sys_flag": NUMBER},
    },
    "Producer.send_one_way": {"message": MESSAGE, "queue": QUEUES},
    "Producer.queues": {"topic": TEXT},
    "Producer.request": {"message": MESSAGE, "timeout_s": MORE_THAN_0},
    "Producer.reply": {"request": (None, Message("T", b""), received()), "body": (None, "text")},
    "Producer.send_in_transaction": {
        "message": (*MESSAGE, Message("T", b"", delay_level=1)),
        "decide": (None, *FUNCTION),
    },
    "PushConsumer": {
        **CONSUMER,
        "listener": (None, *FUNCTION),
        **{"in_order": BOOL, "model": (None, 0, "broadcast"), "strategy": (None, *FUNCTION)},
        **{"start_time_ms": (*NUMBER_OR_NONE, 5), "concurrency": COUNT},
        **{"max_retries": (*NUMBER_OR_NONE, 2**31), "offsets_folder": (5, "folder")},
        "instance": (*TEXT, "a/b", "../x"),
    },
    "PushConsumer.continue_at": {
        "offsets": (None, [QUEUE], {"T": 0}, *({QUEUE: each} for each in NUMBER))
    },
    "PushConsumer.consume_now": {"message": (None, b"", Message("T", b""))},
    "SimpleConsumer": CONSUMER,
    "SimpleConsumer.receive": {
        **{"count": (*COUNT, 33), "invisible_s": MORE_THAN_0, "wait_s": SECONDS}
    },
    "SimpleConsumer.ack": {"messages": (None, [POPPED], (POPPED,), received(), "id")},
    "SimpleConsumer.change_invisible": {
        **{"message": (None, [POPPED], received(), "id"), "invisible_s": SECONDS}
    },
    "PullConsumer": {name: CONSUMER[name] for name in ("namesrv", "group", "access")},
    "PullConsumer.queues": {"topic": TEXT},
    "PullConsumer.pull": {
        **{"queue": (None, *QUEUES), "offset": NUMBER, "subscription": SUBSCRIPTION},
        **{"count": (*COUNT, 2**31), "wait_s": SECONDS},
    },
    "PullConsumer.read": {
        **{"queue": (None, *QUEUES), "start": NUMBER_OR_NONE, "end": NUMBER_OR_NONE},
        "subscription": SUBSCRIPTION,
    },
    "PullConsumer.committed": {"queue": (None, *QUEUES)},
    "PullConsumer.commit": {"queue": (None, *QUEUES), "offset": NUMBER},
    "Offsets.address": {"queue": (None, *QUEUES)},
    "Offsets.lowest": {"queue": (None, *QUEUES)},
    "Offsets.end": {"queue": (None, *QUEUES)},
    "Offsets.at_time": {"queue": (None, *QUEUES), "timestamp_ms": NUMBER},
    "Offsets.committed": {"group": TEXT, "queue": (None, *QUEUES)},
    "Offsets.commit": {"group": TEXT, "queue": (None, *QUEUES), "offset": NUMBER},
    "Admin": {name: CONSUMER[name] for name in ("namesrv", "access")},
    "Admin.masters": {"cluster": OR_NONE},
    "Admin.runtime_info": {"address": ADDRESS},
    "Admin.broker_config": {"address": ADDRESS},
    "Admin.update_broker_config": {
        "address": ADDRESS,
        "settings": (None, "a=b", {"a": 1}, {1: "a"}, {"": "b"}, {"a": "b\nc=d"}, {"a\nb": "c"}),
    },
    "Admin.set_writable": {"broker_name": TEXT, "writable": BOOL},
    "Admin.route": {"topic": TEXT},
    "Admin.queues": {"topic": TEXT},
    "Admin.create_topic": {
        **{"topic": (*TEXT, "a b"), "queues": (*COUNT, 2**31), "perm": (*NUMBER, 16, "rw")},
        **{"order": BOOL, "cluster": OR_NONE, "attributes": (5, b"a")},
        **{"message_type": ("FIFO", 1)},
    },
    "Admin.delete_topic": {"topic": TEXT},
    "Admin.topic_configs": {"address": ADDRESS},
    "Admin.topic_types": {"topic": (5, "", b"T")},
    "Admin.topic_stats": {"topic": TEXT},
    "Admin.groups_of": {"topic": TEXT},
    "Admin.create_group": {"group": GROUP, "orderly": BOOL},
    "Admin.delete_group": {"group": TEXT, "offsets": BOOL},
    "Admin.consume_stats": {"group": TEXT, "topic": OR_NONE},
    "Admin.consumers": {"group": TEXT, "address": ADDRESS},
    "Admin.producers": {"group": TEXT, "address": ADDRESS},
    "Admin.reset_offsets": {
        "group": TEXT,
        **{"topic": TEXT, "timestamp_ms": (None, 1.5, "0", True, -2, 2**63), "force": BOOL},
    },
    "Admin.find": {
        **{"topic": TEXT, "key": TEXT, "count": (*COUNT, 2**31)},
        **{"begin_ms": NUMBER, "end_ms": NUMBER},
    },
    "Admin.view": {"offset_message_id": (*TEXT, "xyz", "g" * 32)},
    "Admin.resume_transaction": {"message_id": (*TEXT, "xyz", "g" * 32)},
    "Admin.users": WHERE,
    "Admin.create_user": {
        **{"name": (*TEXT, "a b"), "password": TEXT, "user_type": (None, 5, "Boss"), **WHERE}
    },
    "Admin.update_user": {
        **{"name": TEXT, "password": (5, "", b"x"), "user_type": (5, "Boss")},
        **{"status": (5, "maybe"), **WHERE},
    },
    "Admin.delete_user": {"name": TEXT, **WHERE},
    "Admin.acls": WHERE,
    "Admin.set_acl": {
        **{"name": TEXT, "resources": (*TEXTS, [], ["T"], ["Topic:a*b"])},
        **{"actions": (*TEXTS, [], ["Fly"]), "decision": (None, "Perhaps")},
        **{"sources": (*TEXTS, ["10.0.0"]), "policy_type": (None, "Other"), **WHERE},
    },
    "Admin.delete_acl": {
        **{"name": TEXT, "resource": (5, "", b"T"), "policy_type": (5, "Other"), **WHERE}
    },
    "Admin.put_kv": {**KV, "value": SOME_TEXT},
    "Admin.get_kv": KV,
    "Admin.delete_kv": KV,
    "by_tags": {"topic": (*TEXT, "a b"), "expression": (*SOME_TEXT, "||")},
    "by_sql": {"topic": (*TEXT, "a b"), "expression": (*TEXT, " ")},
    **{
        f"{kind}.close": {"grace_s": SECONDS}
        for kind in ("Producer", "PushConsumer", "SimpleConsumer", "PullConsumer", "Admin")
    },
}
KINDS: tuple[type, ...] = (Producer, PushConsumer, SimpleConsumer, PullConsumer, Offsets, Admin)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "by_tags": by_tags,
    "by_sql": by_sql,
    **{kind.__name__: kind for kind in KINDS},
}


def parameters() -> Iterator[tuple[str, str]]:
    """Yield every parameter of every public function, as "Class.method" and name."""
    for name, function in FUNCTIONS.items():
        if function is not Offsets:
            yield from ((name, parameter) for parameter in inspect.signature(function).parameters)
    for kind in KINDS:
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                for parameter in list(inspect.signature(method).parameters)[1:]:
                    yield f"{kind.__name__}.{name}", parameter


def test_the_table_contains_every_parameter() -> None:
    assert set(parameters()) == {(name, each) for name, wrong in WRONG.items() for each in wrong}


class Opened:
    """A cluster, and one of each client."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.clients: dict[str, Any] = {}

    async def open(self, namesrv: str, folder: Path) -> None:
        await fill(namesrv, "T", 4)
        self.clients = {
            "Producer": Producer(namesrv),
            "PushConsumer": PushConsumer(namesrv, "G", Heard(), {"T": "*"}),
            "SimpleConsumer": SimpleConsumer(namesrv, "S", {"T": "*"}),
            "PullConsumer": PullConsumer(namesrv, "P"),
            "Admin": Admin(namesrv),
        }
        for client in self.clients.values():
            await client.open()
        self.clients["Offsets"] = self.clients["PullConsumer"].offsets
        await self.clients["PullConsumer"].queues("T")

    async def close(self) -> None:
        for client in self.clients.values():
            if not isinstance(client, Offsets):
                await client.close()

    def call(self, name: str, arguments: dict[str, Any]) -> object:
        kind, _, method = name.partition(".")
        function = getattr(self.clients[kind], method) if method else FUNCTIONS[kind]
        various = arguments.pop("messages") if name == "SimpleConsumer.ack" else None
        returned = function(*([various] if name == "SimpleConsumer.ack" else []), **arguments)
        return self.runner.run(returned) if inspect.iscoroutine(returned) else returned


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("offsets")
    with asyncio.Runner() as runner:
        running = Broker.running(store=SMALL)
        broker = runner.run(running.__aenter__())
        found = Opened(runner)
        runner.run(found.open(broker.namesrv, folder))
        try:
            yield found
        finally:
            runner.run(found.close())
            runner.run(running.__aexit__(None, None, None))


def arguments_of(name: str, wrong: str, value: object) -> dict[str, Any]:
    """Return valid arguments for all required parameters except one."""
    kind, _, method = name.partition(".")
    function = getattr(FUNCTIONS[kind], method) if method else FUNCTIONS[kind]
    needed = {
        each.name: SPECIAL.get(name, {}).get(each.name, GOOD.get(each.name))
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.name != "self"
    }
    return needed | {wrong: value}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name, given in WRONG.items() for wrong in given],
    ids=lambda each: each,
)
def test_a_wrong_value_is_rejected_and_named(
    name: str, wrong: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> None:
        pytest.fail("something was sent")

    monkeypatch.setattr(RemotingClient, "request", ask)
    monkeypatch.setattr(RemotingClient, "tell", ask)
    for value in WRONG[name][wrong]:
        with pytest.raises((ConfigError, IllegalMessageError, FormatError, RequestError)) as raised:
            opened.call(name, arguments_of(name, wrong, value))
            pytest.fail(f"{value!r:.50} was accepted")
        assert is_named(wrong, str(raised.value)), f"{value!r:.50}: {raised.value}"


ALIASES = {
    "message": ("topic", "body", "flag", "keys", "property 'a'", "delay_level", "raw_properties"),
    "messages": ("batch", "message"),
    "message_id": ("message id",),
    "offset_message_id": ("message id",),
    "request": ("message",),
    "topics": ("topic", "tags of"),
    "expression": ("tags of", "condition for"),
    "offsets": ("queue",),
    "name": ("username",),
    "resources": ("resource",),
    "actions": ("action",),
    "sources": ("source ip",),
}
"""The names that errors use for parts of compound arguments."""


def is_named(argument: str, message: str) -> bool:
    names = (argument, *ALIASES.get(argument, ()))
    text = message.removeprefix("code 13: ")
    return any(text.startswith(each) for each in names)


def test_wrong_types_and_wrong_values_have_their_own_errors() -> None:
    """A wrong type is also a TypeError; a wrong value is only a ValueError."""
    with pytest.raises(WrongTypeError) as raised:
        Producer(NAMESRV, timeout_s="3")  # type: ignore[arg-type]
    assert isinstance(raised.value, TypeError)
    allowed = "expected a number of seconds from 0.001 to 2147483648"
    assert str(raised.value) == f"timeout_s = '3': {allowed}"
    with pytest.raises(ValueError, match=r"timeout_s = -1: ") as caught:
        Producer(NAMESRV, timeout_s=-1)
    assert not isinstance(caught.value, TypeError)


def test_numbers_of_other_types_are_accepted() -> None:
    class Index:
        def __index__(self) -> int:
            return 2

    assert Producer(NAMESRV, retries=Index())._sender.retries == 2  # type: ignore[arg-type]


def test_an_offset_beyond_the_end_is_rejected(opened: Opened) -> None:
    """The group would skip the messages up to that offset."""
    consumer: PullConsumer = opened.clients["PullConsumer"]

    async def test() -> None:
        end = await consumer.offsets.end(QUEUE)
        with pytest.raises(ConfigError, match=f"offset = {10**12}: is beyond the end .*, {end}$"):
            await consumer.commit(QUEUE, 10**12)
        assert await consumer.committed(QUEUE) is None
        await consumer.commit(QUEUE, end)
        assert await consumer.committed(QUEUE) == end

    opened.runner.run(test())
