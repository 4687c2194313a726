"""Automatic renewal: messages stay invisible while a client that asked for it works on them.

Push consumers let the service renew their messages. The handles that they have are replaced by
newer ones in this table. Messages whose client left become visible to others.
"""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from firetrail.errors import FiretrailError, ProxyError
from firetrail.pace.periodic import GuardedStep, every
from firetrail.proxy.calls.consumption.pop_requests import RETURNED_MS, PopRequests
from firetrail.proxy.schema.messages import Code
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import Brokers, resolved
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.messages.pop.receipts import Receipt
from firetrail.remoting.servers.fair_shares import FairShares, ShareHolder

HANDLES_MAX = 100_000
"""Maximum number of renewed messages; each takes about a KiB. Further ones are not renewed."""
POLL_S = 1.0
"""Pause between two searches for messages to renew."""
AHEAD_MS = 10_000
"""The time before the end of their invisible time at which messages are renewed."""
TIMES_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
"""The invisible times of the first renewals; the last one repeats."""
TOTAL_MAX_MS = 3 * 3600 * 1000
"""The time after which a message is no longer renewed, but redelivered after the group's retry
delay."""
FAILURES_MAX = 3
"""The number of consecutive failures after which a message is no longer renewed."""
BATCH_SIZE = 64
"""Maximum number of messages that are renewed at the same time."""
STOP_S = 3.0
"""The time that a stop waits until messages are returned."""

_log = logging.getLogger(__name__)
RenewalKey = tuple[str, str, str]
"""Client id, consumer group and the handle that the client has."""


@dataclass(slots=True, eq=False)
class RenewedMessage:
    """A message that is renewed until its client acknowledges it."""

    client: ProxyClient
    group: str
    topic: str
    handle: str
    """The handle that the client received."""
    receipt: Receipt
    """The receipt that is valid now."""
    attempt: int
    """The number of the delivery, 1 for the first."""
    since_ms: int
    holder: ShareHolder
    """The name under which it is counted."""
    renewals: int = 0
    failures: int = 0
    renewing: asyncio.Future[None] | None = None
    """Completes when the renewal in progress ends; None if there is none."""

    @property
    def key(self) -> RenewalKey:
        """The key of the message in the table."""
        return self.client.client_id, self.group, self.handle

    @property
    def due_ms(self) -> int:
        """The time at which the message has to be renewed."""
        return self.receipt.pop_time + self.receipt.invisible_ms - AHEAD_MS


class Renewals:
    """All renewed messages.

    Args:
        requests: The requests to brokers.
        brokers: The brokers, which know the retry policies of groups.
        now_ms: The clock.
    """

    def __init__(
        self,
        requests: PopRequests,
        brokers: Brokers,
        now_ms: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self._requests = requests
        self._brokers = brokers
        self._now_ms = now_ms
        self._messages: dict[RenewalKey, RenewedMessage] = {}
        self._by_client: dict[str, dict[RenewalKey, RenewedMessage]] = {}
        remedy = "Acknowledge messages, or receive fewer at once."
        self._shares = FairShares("renewed messages", remedy, lambda: HANDLES_MAX, now)
        self._due: list[tuple[int, int, RenewedMessage]] = []
        self._numbers = count()
        self._task: asyncio.Task[None] | None = None
        self._returning: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._messages)

    # -- changes ------------------------------------------------------------------------------

    def add(
        self,
        client: ProxyClient,
        group: str,
        topic: str,
        handle: str,
        receipt: Receipt,
        attempt: int,
    ) -> None:
        """Renew a message from now on, unless its client has left, or its share is used up."""
        if self._is_stopped or client.is_closed:
            return
        self.remove(client.client_id, group, handle)
        holder = client.holder._replace(group=group)
        if self._shares.excess(holder) is not None:
            return
        self._shares.take(holder)
        now_ms = self._now_ms()
        message = RenewedMessage(
            client=client,
            group=group,
            topic=topic,
            handle=handle,
            receipt=receipt,
            attempt=attempt,
            since_ms=now_ms,
            holder=holder,
        )
        self._messages[message.key] = message
        self._by_client.setdefault(client.client_id, {})[message.key] = message
        self._schedule(message)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def find(self, client_id: str, group: str, handle: str) -> RenewedMessage | None:
        """Return the message that a client has received with a handle, None if not renewed.

        Its receipt is valid in place of the handle, once no renewal is in progress.
        """
        return self._messages.get((client_id, group, handle))

    def remove(self, client_id: str, group: str, handle: str) -> None:
        """Stop the renewal of a message: its client has acknowledged it or changed its time."""
        message = self._messages.pop((client_id, group, handle), None)
        if message is None:
            return
        self._shares.give_back(message.holder)
        others = self._by_client[client_id]
        del others[message.key]
        if not others:
            del self._by_client[client_id]
        if len(self._due) > 2 * len(self._messages) + BATCH_SIZE:
            self._due = [item for item in self._due if self._is_kept(item[2])]
            heapq.heapify(self._due)

    def release(self, client_id: str, group: str | None = None) -> None:
        """Let the messages of a client that left become visible to others soon.

        Args:
            client_id: The client.
            group: Only the messages of this group. Default: of all groups.
        """
        messages = [
            message
            for message in self._by_client.get(client_id, {}).values()
            if group is None or message.group == group
        ]
        for message in messages:
            self.remove(*message.key)
        if messages and not self._is_stopped:
            task = asyncio.get_running_loop().create_task(self._return(messages))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def stop(self) -> None:
        """Stop all renewals, and let the messages that were renewed become visible soon.

        Their clients have handles that only this table could replace. The handle of a message that
        was not renewed yet stays valid after a restart, or at another proxy.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        renewed = [message for message in self._messages.values() if message.renewals]
        returning = asyncio.gather(self._return(renewed), *self._returning, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(returning, STOP_S)

    # -- renewing -----------------------------------------------------------------------------

    def _schedule(self, message: RenewedMessage) -> None:
        heapq.heappush(self._due, (message.due_ms, next(self._numbers), message))

    def _is_kept(self, message: RenewedMessage) -> bool:
        return self._messages.get(message.key) is message

    async def _run(self) -> None:
        trouble = "received messages could not be renewed; will retry"
        await every(POLL_S, GuardedStep(self._renew_due, trouble, _log))

    async def _renew_due(self) -> None:
        while batch := self._take_due():
            await asyncio.gather(*map(self._renew, batch), return_exceptions=True)

    def _take_due(self) -> list[RenewedMessage]:
        now = self._now_ms()
        batch: list[RenewedMessage] = []
        while self._due and self._due[0][0] <= now and len(batch) < BATCH_SIZE:
            message = heapq.heappop(self._due)[2]
            if self._is_kept(message):
                batch.append(message)
        return batch

    async def _renew(self, message: RenewedMessage) -> None:
        is_last = self._now_ms() - message.since_ms >= TOTAL_MAX_MS
        where = (message.client, message.group, message.topic)
        message.renewing = asyncio.get_running_loop().create_future()
        try:
            time_ms = TIMES_MS[min(message.renewals, len(TIMES_MS) - 1)]
            if is_last:
                time_ms = await self._retry_delay_ms(message)
            message.receipt = await self._requests.change(*where, message.receipt, time_ms)
        except Exception as error:
            self._failed(message, error)
            return
        except asyncio.CancelledError as error:  # the broker may have cancelled the request
            self._failed(message, error)
            raise
        finally:
            message.renewing.set_result(None)
            message.renewing = None
        if is_last or not self._is_kept(message):
            self.remove(*message.key)
            return
        message.failures = 0
        message.renewals += 1
        self._schedule(message)

    async def _retry_delay_ms(self, message: RenewedMessage) -> int:
        """Return the time after which the group of a message retries it."""
        group = await resolved(self._brokers.group(message.group))
        policy = (group or SubscriptionGroupConfig(message.group)).retry_policy.for_servers
        return policy.delay_ms(message.attempt - 1)

    def _failed(self, message: RenewedMessage, error: BaseException) -> None:
        message.failures += 1
        invalid = isinstance(error, ProxyError) and error.code == Code.INVALID_RECEIPT_HANDLE
        if invalid or message.failures >= FAILURES_MAX:
            if not invalid:
                _log.warning(
                    "a message of topic %s for group %s is no longer renewed: %r",
                    message.topic,
                    message.group,
                    error,
                )
            self.remove(*message.key)
        elif self._is_kept(message):
            retry_at = self._now_ms() + AHEAD_MS // (FAILURES_MAX + 1)
            heapq.heappush(self._due, (retry_at, next(self._numbers), message))

    async def _return(self, messages: list[RenewedMessage]) -> None:
        for message in messages:
            where = (message.client, message.group, message.topic)
            try:
                if message.renewing is not None:  # its result is the receipt that is valid then
                    await message.renewing
                await self._requests.change(*where, message.receipt, RETURNED_MS)
            except (FiretrailError, OSError) as error:
                _log.info("a message is visible only after its invisible time: %s", error)
