"""Clients that are not open yet or already closed, and the effects of opening and closing."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.broker.brokers import SMALL
from tests.client.clusters import fill, received

from firetrail.broker.broker import Broker
from firetrail.client import (
    Admin,
    ClientClosedError,
    Message,
    MessageQueue,
    Outcome,
    Popped,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from firetrail.client.cluster.cluster_client import ClusterClient
from firetrail.client.cluster.session import _SessionState
from firetrail.remoting.messages.pop.receipts import Receipt
from firetrail.remoting.wire.codes import Permission

QUEUE = MessageQueue("T", "broker-a", 0)
ARGUMENTS: dict[str, Any] = {
    "actions": ["Pub"],
    "address": "127.0.0.1:1",
    "broker_name": "broker-a",
    "count": 1,
    "decide": lambda _: Outcome.COMMIT,
    "group": "G",
    "invisible_s": 1.0,
    "items": b"",
    "key": "k",
    "message": Message("T", b""),
    "messages": [Message("T", b"")],
    "message_id": "7F00000100002A9F0000000000000000",
    "name": "somebody",
    "namespace": "n",
    "offset": 0,
    "offset_message_id": "7F00000100002A9F0000000000000000",
    "offsets": {QUEUE: 0},
    "password": "a secret",
    "queue": QUEUE,
    "request": received(),
    "resources": ["Topic:T"],
    "sent": "a handle",
    "settings": {"a": "b"},
    "timestamp_ms": 0,
    "topic": "T",
    "value": "v",
    "writable": True,
    "body": b"",
}
LIFE = ("open", "close", "consume_now")
"""Methods that need no connection; the last one calls the listener with a message."""
POPPED = Popped(QUEUE, received().record, Receipt(0, 0, 0, 0, "0", "broker-a", 0, 0))
MAKERS: dict[type[ClusterClient], Callable[[str], ClusterClient]] = {
    Admin: Admin,
    Producer: Producer,
    PullConsumer: PullConsumer,
    PushConsumer: lambda namesrv: PushConsumer(namesrv, "G", lambda _: None, {"T": "*"}),
    SimpleConsumer: lambda namesrv: SimpleConsumer(namesrv, "G", {"T": "*"}),
}


def methods() -> Iterator[tuple[type[ClusterClient], str]]:
    """Return all public coroutines and async iterators of every client."""
    for kind in MAKERS:
        for name, member in inspect.getmembers(kind):
            is_async = inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
            if is_async and not name.startswith("_") and name not in LIFE:
                yield kind, name


async def use(client: ClusterClient, name: str) -> None:
    method = getattr(client, name)
    if name in ("ack", "change_invisible"):
        found = {"ack": (POPPED,), "change_invisible": (POPPED, 1.0)}[name]
        await method(*found)
    else:
        needed = {
            parameter.name: ARGUMENTS[parameter.name]
            for parameter in inspect.signature(method).parameters.values()
            if parameter.default is parameter.empty
        }
        called = method(**needed)
        if inspect.isasyncgen(called):
            await anext(called)
        else:
            await called


@pytest.mark.parametrize(
    ("kind", "name"),
    list(methods()),
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
async def test_calls_of_a_client_that_is_not_open_raise(
    kind: type[ClusterClient], name: str
) -> None:
    client = MAKERS[kind]("127.0.0.1:1")
    with pytest.raises(ClientClosedError, match=f"^{kind.__name__} is not open; use 'async"):
        await use(client, name)
    await client.close()
    with pytest.raises(ClientClosedError, match=f"^{kind.__name__} is closed; create a new"):
        await use(client, name)


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
async def test_a_client_belongs_to_the_event_loop_that_opened_it(
    namesrv: str, kind: type[ClusterClient]
) -> None:
    await fill(namesrv, "T", 1)

    def use_elsewhere(name: str) -> None:
        with pytest.raises(ClientClosedError, match="was opened in another event loop; open a"):
            asyncio.run(use(client, name))

    async with MAKERS[kind](namesrv) as client:
        for name in [each for other, each in methods() if other is kind] + ["close"]:
            await asyncio.to_thread(use_elsewhere, name)


def test_a_client_whose_event_loop_has_ended() -> None:
    async def left_open() -> Producer:
        async with Broker.running(store=SMALL) as broker:
            producer = Producer(broker.namesrv)
            await producer.open()
            await producer._session.close()  # its tasks would be reported otherwise
            producer._session._state = _SessionState.OPEN
            return producer

    producer = asyncio.run(left_open())
    with pytest.raises(ClientClosedError, match="in another event loop that has ended; open a"):
        asyncio.run(producer.send(Message("T", b"")))


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
async def test_a_client_is_opened_once_and_closed_once(
    namesrv: str, kind: type[ClusterClient]
) -> None:
    await fill(namesrv, "T", 1)
    client = MAKERS[kind](namesrv)
    await client.open()
    with pytest.raises(ClientClosedError, match="is open"):
        await client.open()
    await client.close()
    await client.close()
    with pytest.raises(ClientClosedError, match="is closed; create a new one"):
        await client.open()
    with pytest.raises(ClientClosedError, match="is closed"):
        await client._session.route("T")


async def test_a_failed_open_can_be_retried(namesrv: str) -> None:
    consumer = SimpleConsumer(namesrv, "G", {"T": "*"})
    async with Admin(namesrv) as admin:
        await admin.create_topic("T", perm=Permission.WRITE)
        for _ in range(2):
            with pytest.raises(Exception, match="no broker has queues of T"):
                await consumer.open()
        await admin.create_topic("T")
    await fill(namesrv, "T", 1)
    await consumer.open()
    assert len(await consumer.receive(wait_s=5)) == 1
    await consumer.close()


@pytest.mark.parametrize("moment", ["connecting", "waiting"])
async def test_waiting_calls_raise_when_the_client_is_closed(namesrv: str, moment: str) -> None:
    """They are not cancelled, because that would end a task that its owner did not cancel."""
    await fill(namesrv, "T", 1)
    consumer = PullConsumer(namesrv)
    await consumer.open()
    if moment == "waiting":
        await consumer.queues("T")
        end = await consumer.offsets.end(QUEUE)
        pull = asyncio.ensure_future(consumer.pull(QUEUE, end, wait_s=20))
        await asyncio.sleep(0.1)
    else:
        pull = asyncio.ensure_future(consumer.pull(QUEUE, 0))
        await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(ClientClosedError, match=r"PullConsumer (was|is) closed"):
        await pull
