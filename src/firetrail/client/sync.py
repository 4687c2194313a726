"""Synchronous clients for scripts, notebooks and threads: those of this package, without await.

::

    from firetrail.client import Message
    from firetrail.client.sync import SyncProducer

    with SyncProducer("127.0.0.1:9876", "orders") as producer:
        producer.send(Message("T", b"hello"))

Classes, methods, arguments, results and errors are those of :mod:`firetrail.client`. All clients of
a process share one event loop, which runs in a thread while a client is open. A client can be used
in several threads at once, also beside a running event loop, which then waits for the call. It
cannot be used in a child process after a fork: open a client there. Clients that are still open
when the interpreter exits are closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import wraps
from queue import SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from firetrail import client
from firetrail.client.cluster.cluster_client import GRACE_S, ClusterClient
from firetrail.client.cluster.offsets import Offsets
from firetrail.client.loop_thread import LOOP_THREAD
from firetrail.client.messages.received_message import Received
from firetrail.client.messages.send_requests import SendResult
from firetrail.client.producers.transaction_outcome import Outcome
from firetrail.errors import ClientClosedError
from firetrail.format.kernels.draft import Message
from firetrail.format.values.arguments import function
from firetrail.remoting.messages.bodies import MessageQueue, SubscriptionData

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
C = TypeVar("C", bound=ClusterClient)


class _OpeningProcess:
    """The process in which a client was opened."""

    def __init__(self) -> None:
        self.number = os.getpid()

    @property
    def is_this(self) -> bool:
        return self.number == os.getpid()


class _SyncCall(Generic[R]):
    """A call in progress; if the wait for it is interrupted, for example by Ctrl-C, it is ended."""

    def __init__(self, running: Future[R]) -> None:
        self._running = running

    def result(self) -> R:
        with self:
            return self._running.result()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        self._running.cancel()  # which has no effect on a call that has ended


class _SyncFacade(Generic[T]):
    """Runs the coroutines of an asynchronous object in the shared event loop."""

    def __init__(self, target: T, process: _OpeningProcess | None = None) -> None:
        self._target = target
        self._process = process or _OpeningProcess()

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._submit(work).result()

    def _submit(self, work: Coroutine[Any, Any, R]) -> _SyncCall[R]:
        if not self._process.is_this:
            work.close()
            raise ClientClosedError(
                f"{type(self._target).__name__} was opened in the process {self._process.number}, "
                "before a fork; open a client in each process"
            )
        return _SyncCall(LOOP_THREAD.submit(work))


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_SyncFacade[Any], P], R]:
    """Return a method that waits for the result of an asynchronous one."""

    @wraps(method)
    def call(facade: _SyncFacade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return facade._run(method(facade._target, *args, **kwargs))

    return call


class _SyncClient(_SyncFacade[C]):
    """The base class of the synchronous clients: opened once, closed once, usable in between."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect to the cluster; ``with`` does this on entry."""
        self._process.number = os.getpid()
        is_new = LOOP_THREAD.enter(self)
        try:
            self._run(self._target.open())
        except BaseException:
            if is_new:
                LOOP_THREAD.leave(self)
            raise

    def close(self, grace_s: float = GRACE_S) -> None:
        """Finish running calls and listeners, and leave the cluster; ``with`` does this on exit.

        Args:
            grace_s: How long to wait for running calls and listeners, in seconds. Default: 5.
        """
        if not self._process.is_this:  # the other process closes it
            return
        LOOP_THREAD.enter(self)
        try:
            self._run(self._target.close(grace_s))
        finally:
            LOOP_THREAD.leave(self)


class SyncProducer(_SyncClient[client.Producer]):
    """Sends messages: see :class:`firetrail.client.Producer`.

    Args:
        namesrv: The address of a name server, or several.
        group: The name of the producer group. Default: ``FIRETRAIL_PRODUCER``.
        check: The function that returns the outcome of a transaction when a broker asks for it. It
            is called in a thread of its own. Default: none.
        options: The other arguments of the asynchronous class.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str = "FIRETRAIL_PRODUCER",
        *,
        check: Callable[[Received], Outcome] | None = None,
        **options: Any,
    ) -> None:
        if check is not None:
            options["check"] = _in_thread(function("check", check, "def check(message)"))
        super().__init__(client.Producer(namesrv, group, **options))

    queues = _blocking(client.Producer.queues)
    recall = _blocking(client.Producer.recall)
    reply = _blocking(client.Producer.reply)
    request = _blocking(client.Producer.request)
    send = _blocking(client.Producer.send)
    send_batch = _blocking(client.Producer.send_batch)
    send_encoded = _blocking(client.Producer.send_encoded)
    send_one_way = _blocking(client.Producer.send_one_way)

    def send_in_transaction(
        self, message: Message, decide: Callable[[Message], Outcome]
    ) -> SendResult:
        """Send a message that consumers see only if ``decide`` commits it.

        Args:
            message: The message to send; it must not be delayed.
            decide: The function that gets the message and returns its Outcome. It is called in the
                thread of the caller, so that it can use the caller's database connection.

        Raises:
            The same errors as the asynchronous method, and those of ``decide``.
        """
        function("decide", decide, "lambda message: Outcome.COMMIT")
        questions: SimpleQueue[asyncio.Future[Outcome] | None] = SimpleQueue()

        async def ask(_: Message) -> Outcome:
            answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            questions.put(answer)
            return await answer

        async def send() -> SendResult:
            try:
                return await self._target.send_in_transaction(message, ask)
            finally:
                questions.put(None)

        sending = self._submit(send())
        with sending:
            answer = questions.get()
            if answer is not None:
                _settle(answer, lambda: decide(message))
            return sending.result()


class SyncPullConsumer(_SyncClient[client.PullConsumer]):
    """Reads queues at given offsets: see :class:`firetrail.client.PullConsumer`.

    Args:
        namesrv: The address of a name server, or several.
        group: The name of the consumer group. Default: ``FIRETRAIL_PULL_CONSUMER``.
        options: The other arguments of the asynchronous class.
    """

    def __init__(
        self, namesrv: str | Sequence[str], group: str = "FIRETRAIL_PULL_CONSUMER", **options: Any
    ) -> None:
        super().__init__(client.PullConsumer(namesrv, group, **options))
        self.offsets = SyncOffsets(self._target.offsets, self._process)
        """Requests for the offsets of queues and groups."""

    commit = _blocking(client.PullConsumer.commit)
    committed = _blocking(client.PullConsumer.committed)
    pull = _blocking(client.PullConsumer.pull)
    queues = _blocking(client.PullConsumer.queues)

    def read(
        self,
        queue: MessageQueue,
        start: int | None = None,
        end: int | None = None,
        subscription: SubscriptionData | None = None,
    ) -> Iterator[Received]:
        """Yield the messages of a queue: see :meth:`firetrail.client.PullConsumer.read`."""
        messages = self._target.read(queue, start, end, subscription)

        async def following() -> Received | None:
            return await anext(messages, None)

        def iterate() -> Iterator[Received]:
            while (message := self._run(following())) is not None:
                yield message

        return iterate()


class SyncSimpleConsumer(_SyncClient[client.SimpleConsumer]):
    """Receives messages and acknowledges each: see :class:`firetrail.client.SimpleConsumer`.

    Args:
        namesrv: The address of a name server, or several.
        group: The name of the consumer group.
        topics: The subscriptions by topic.
        options: The other arguments of the asynchronous class.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topics: Mapping[str, str | SubscriptionData],
        **options: Any,
    ) -> None:
        super().__init__(client.SimpleConsumer(namesrv, group, topics, **options))

    ack = _blocking(client.SimpleConsumer.ack)
    change_invisible = _blocking(client.SimpleConsumer.change_invisible)
    receive = _blocking(client.SimpleConsumer.receive)


class SyncPushConsumer(_SyncClient[client.PushConsumer]):
    """Consumes topics as a member of a group: see :class:`firetrail.client.PushConsumer`.

    Args:
        namesrv: The address of a name server, or several.
        group: The name of the consumer group.
        listener: The function that consumes a message. It is called in threads of a pool, several
            at once; the message is retried if it raises.
        topics: The subscriptions by topic.
        options: The other arguments of the asynchronous class.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        listener: Callable[[Received], None],
        topics: Mapping[str, str | SubscriptionData],
        **options: Any,
    ) -> None:
        function("listener", listener, "def on_message(message)")
        super().__init__(
            client.PushConsumer(namesrv, group, _in_thread(listener), topics, **options)
        )

    commit = _blocking(client.PushConsumer.commit)
    continue_at = _blocking(client.PushConsumer.continue_at)
    rebalance = _blocking(client.PushConsumer.rebalance)


class SyncAdmin(_SyncClient[client.Admin]):
    """Inspects a cluster and changes it: see :class:`firetrail.client.Admin`.

    Args:
        namesrv: The address of a name server, or several.
        options: The other arguments of the asynchronous class.
    """

    def __init__(self, namesrv: str | Sequence[str], **options: Any) -> None:
        super().__init__(client.Admin(namesrv, **options))
        self.offsets = SyncOffsets(self._target.offsets, self._process)
        """Requests for the offsets of queues and groups."""

    acls = _blocking(client.Admin.acls)
    broker_config = _blocking(client.Admin.broker_config)
    cluster = _blocking(client.Admin.cluster)
    consume_stats = _blocking(client.Admin.consume_stats)
    consumers = _blocking(client.Admin.consumers)
    create_group = _blocking(client.Admin.create_group)
    create_topic = _blocking(client.Admin.create_topic)
    create_user = _blocking(client.Admin.create_user)
    delete_acl = _blocking(client.Admin.delete_acl)
    delete_group = _blocking(client.Admin.delete_group)
    delete_kv = _blocking(client.Admin.delete_kv)
    delete_topic = _blocking(client.Admin.delete_topic)
    delete_user = _blocking(client.Admin.delete_user)
    find = _blocking(client.Admin.find)
    get_kv = _blocking(client.Admin.get_kv)
    groups = _blocking(client.Admin.groups)
    groups_of = _blocking(client.Admin.groups_of)
    masters = _blocking(client.Admin.masters)
    producers = _blocking(client.Admin.producers)
    put_kv = _blocking(client.Admin.put_kv)
    queues = _blocking(client.Admin.queues)
    reset_offsets = _blocking(client.Admin.reset_offsets)
    resume_transaction = _blocking(client.Admin.resume_transaction)
    route = _blocking(client.Admin.route)
    runtime_info = _blocking(client.Admin.runtime_info)
    set_acl = _blocking(client.Admin.set_acl)
    set_writable = _blocking(client.Admin.set_writable)
    system_topics = _blocking(client.Admin.system_topics)
    topic_configs = _blocking(client.Admin.topic_configs)
    topic_stats = _blocking(client.Admin.topic_stats)
    topic_types = _blocking(client.Admin.topic_types)
    topics = _blocking(client.Admin.topics)
    update_broker_config = _blocking(client.Admin.update_broker_config)
    update_user = _blocking(client.Admin.update_user)
    users = _blocking(client.Admin.users)
    view = _blocking(client.Admin.view)


class SyncOffsets(_SyncFacade[Offsets]):
    """Offsets of queues and groups, as the brokers know them."""

    at_time = _blocking(Offsets.at_time)
    commit = _blocking(Offsets.commit)
    committed = _blocking(Offsets.committed)
    end = _blocking(Offsets.end)
    lowest = _blocking(Offsets.lowest)

    def address(self, queue: MessageQueue) -> str:
        """Return the address of the broker that is asked about a queue.

        Args:
            queue: The queue.
        """

        async def find() -> str:
            return self._target.address(queue)

        return self._run(find())


def _in_thread(called: Callable[[T], R]) -> Callable[[T], Coroutine[Any, Any, R]]:
    """Return a coroutine function that calls a function in a thread of the loop's pool."""

    async def call(argument: T) -> R:
        return await asyncio.to_thread(called, argument)

    return call


def _settle(answer: asyncio.Future[R], call: Callable[[], R]) -> None:
    def settle(outcome: Callable[[], None]) -> None:
        answer.get_loop().call_soon_threadsafe(lambda: None if answer.done() else outcome())

    try:
        result = call()
    except Exception as error:
        failure = error
        settle(lambda: answer.set_exception(failure))
    else:
        settle(lambda: answer.set_result(result))
