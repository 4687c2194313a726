"""The synchronous clients: in several threads, beside an event loop, after a fork, at the exit."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest
from tests.broker.brokers import SMALL
from tests.helpers import PATIENCE_S

from firetrail import client
from firetrail.broker.broker import Broker
from firetrail.client import (
    ClientClosedError,
    ConfigError,
    ConsumeFromWhere,
    Message,
    NotReachedError,
    Outcome,
    Received,
    sync,
)
from firetrail.client.cluster.offsets import Offsets
from firetrail.client.loop_thread import LOOP_THREAD

FIRST = ConsumeFromWhere.FIRST_OFFSET
NOT_FOR_PROGRAMS = {"consume_now"}
"""Methods that brokers call through a client."""


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    """The address of a name server with a broker, in a thread of their own."""
    found: SimpleQueue[str] = SimpleQueue()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with Broker.running(store=SMALL) as broker:
            found.put(broker.namesrv)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    yield found.get(timeout=PATIENCE_S)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert "firetrail-client" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("kind", "twin"),
    [
        (client.Producer, sync.SyncProducer),
        (client.PullConsumer, sync.SyncPullConsumer),
        (client.SimpleConsumer, sync.SyncSimpleConsumer),
        (client.PushConsumer, sync.SyncPushConsumer),
        (client.Admin, sync.SyncAdmin),
        (Offsets, sync.SyncOffsets),
    ],
)
def test_every_coroutine_has_a_synchronous_twin(kind: type, twin: type) -> None:
    for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in NOT_FOR_PROGRAMS:
            blocking = getattr(twin, name)
            assert not inspect.iscoroutinefunction(blocking)
            assert (
                list(inspect.signature(blocking).parameters)[1:]
                == (list(inspect.signature(method).parameters)[1:])
            )


def test_messages_are_sent_read_received_and_administered(namesrv: str) -> None:
    with sync.SyncProducer(namesrv, "P") as producer, sync.SyncPullConsumer(namesrv) as consumer:
        sent = [producer.send(Message("Read", b"%d" % n, keys=["k"])) for n in range(5)]
        queues = consumer.queues("Read")
        got = [message.body for queue in queues for message in consumer.read(queue)]
        assert sorted(got) == [b"%d" % n for n in range(5)]
        assert consumer.offsets.end(sent[0].queue) >= 1
        assert consumer.offsets.address(sent[0].queue)
        consumer.commit(sent[0].queue, 1)
        assert consumer.committed(sent[0].queue) == 1
    with sync.SyncAdmin(namesrv) as admin:
        assert "Read" in admin.topics()
        assert len(admin.find("Read", "k")) == 5
    with sync.SyncSimpleConsumer(namesrv, "S", {"Read": "*"}, start=FIRST) as simple:
        (message, *_) = simple.receive(wait_s=PATIENCE_S)
        simple.ack(message)


def test_a_listener_runs_in_threads_and_may_use_clients(namesrv: str) -> None:
    heard: SimpleQueue[tuple[bytes, str]] = SimpleQueue()
    with sync.SyncProducer(namesrv, "P") as producer:
        producer.send(Message("Heard", b"first"))

        def listen(message: Received) -> None:
            if message.body == b"first":
                producer.send(Message("Heard", b"second"))
            heard.put((message.body, threading.current_thread().name))

        with sync.SyncPushConsumer(namesrv, "L", listen, {"Heard": "*"}, start=FIRST):
            found = [heard.get(timeout=PATIENCE_S) for _ in range(2)]
    assert sorted(body for body, _ in found) == [b"first", b"second"]
    assert not {name for _, name in found} & {"firetrail-client", "MainThread"}


class TestTransactions:
    def test_the_function_runs_in_the_thread_of_the_caller(self, namesrv: str) -> None:
        threads: list[threading.Thread] = []

        def decide(message: Message) -> Outcome:
            threads.append(threading.current_thread())
            return Outcome.COMMIT

        with sync.SyncProducer(namesrv, "T") as producer:
            producer.send_in_transaction(Message("Paid", b""), decide)
        assert threads == [threading.current_thread()]

    def test_its_errors_are_raised(self, namesrv: str) -> None:
        def fail(message: Message) -> Outcome:
            raise ZeroDivisionError("a bug")

        with sync.SyncProducer(namesrv, "T", check=lambda _: Outcome.ROLLBACK) as producer:
            with pytest.raises(ZeroDivisionError, match="a bug"):
                producer.send_in_transaction(Message("Paid", b""), fail)
            with pytest.raises(ConfigError, match="expected a function"):
                producer.send_in_transaction(Message("Paid", b""), None)  # type: ignore[arg-type]

    def test_a_send_that_fails_does_not_wait_for_the_function(self, namesrv: str) -> None:
        late = Message("Paid", b"", delay_level=1)
        with (
            sync.SyncProducer(namesrv, "T") as producer,
            pytest.raises(client.RequestError, match="cannot be delayed"),
        ):
            producer.send_in_transaction(late, lambda _: Outcome.COMMIT)


class TestLife:
    def test_errors_are_those_of_the_asynchronous_clients(self, namesrv: str) -> None:
        with pytest.raises(NotReachedError, match="no name server answers"):
            sync.SyncProducer("127.0.0.1:1").open()
        with pytest.raises(ConfigError, match="group"):
            sync.SyncProducer(namesrv, "no group")
        producer = sync.SyncProducer(namesrv)
        with pytest.raises(ClientClosedError):
            producer.send(Message("T", b""))
        producer.close()
        with pytest.raises(ClientClosedError, match="is closed; create a new one"):
            producer.open()

    def test_a_client_is_opened_once(self, namesrv: str) -> None:
        with sync.SyncProducer(namesrv) as producer:
            with pytest.raises(ClientClosedError, match="is open"):
                producer.open()
            producer.send(Message("Twice", b""))
            producer.close()
            producer.close()
        with sync.SyncProducer(namesrv) as again:
            again.send(Message("Twice", b""))

    def test_several_threads_share_a_client(self, namesrv: str) -> None:
        with sync.SyncProducer(namesrv) as producer, ThreadPoolExecutor(8) as pool:
            sent = list(pool.map(lambda n: producer.send(Message("Many", b"%d" % n)), range(200)))
        assert len({each.message_id for each in sent}) == 200

    def test_clients_of_several_threads_come_and_go(self, namesrv: str) -> None:
        def work(number: int) -> str:
            with sync.SyncProducer(namesrv) as producer:
                return producer.send(Message("Many", b"%d" % number)).message_id

        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(work, range(40)))) == 40

    async def test_beside_a_running_event_loop(self, namesrv: str) -> None:
        """A notebook runs its cells in a thread with an event loop."""
        with sync.SyncProducer(namesrv) as producer:
            producer.send(Message("Cells", b""))
            async with client.Producer(namesrv) as other:
                await other.send(Message("Cells", b""))

    def test_a_call_of_its_own_event_loop_is_refused(self, namesrv: str) -> None:
        async def misuse() -> None:
            producer.send(Message("T", b""))

        with (
            sync.SyncProducer(namesrv) as producer,
            pytest.raises(ClientClosedError, match="it would wait for itself"),
        ):
            LOOP_THREAD.submit(misuse()).result(PATIENCE_S)


NO_REPORTS_OF_SLOWNESS = """
import logging
logging.getLogger("asyncio").addFilter(lambda record: "took" not in str(record.msg))
"""
"""Keeps asyncio in its debug mode from reporting callbacks that a busy machine delays by 0.1 s."""


def run_script(script: str) -> str:
    """Run a program in a process of its own, and return what it prints."""
    program = NO_REPORTS_OF_SLOWNESS + script
    done = subprocess.run(
        # Python 3.12 and later warn of every fork of a process with threads.
        [sys.executable, "-W", "error", "-W", "ignore:This process", "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_child_process_opens_its_own_client(namesrv: str) -> None:
    script = f"""
import os
from firetrail.client import ClientClosedError, Message
from firetrail.client.sync import SyncProducer
with SyncProducer({namesrv!r}) as producer:
    producer.send(Message("Forked", b""))
    child = os.fork()
    if child == 0:
        try:
            producer.send(Message("Forked", b""))
        except ClientClosedError as error:
            print(str(error).replace(str(os.getppid()), "PARENT"))
        producer.close()  # which is left to the parent
        with SyncProducer({namesrv!r}) as own:
            print(own.send(Message("Forked", b"child")).status, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(producer.send(Message("Forked", b"parent")).status)
"""
    assert run_script(script).splitlines() == [
        "Producer was opened in the process PARENT, before a fork; open a client in each process",
        "SEND_OK",
        "SEND_OK",
    ]


def test_clients_that_are_left_open_are_closed_at_the_exit(namesrv: str) -> None:
    script = f"""
from firetrail.client import Message
from firetrail.client.sync import SyncProducer
producer = SyncProducer({namesrv!r})
producer.open()
print(producer.send(Message("Left", b"")).status)
"""
    assert run_script(script) == "SEND_OK\n"
