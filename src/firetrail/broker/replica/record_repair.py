"""Repairs of damaged records with good copies from another broker that has the same log.

The brokers of one name have the same log, so a record that is damaged on one is good on the others.
The logs are not assumed to be the same: a copy is used only if the record that follows the damage
is equal on both brokers. Records are only ever appended, so everything before an equal record is
equal, too, as far as it is good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from firetrail.errors import DivergedError, FiretrailError, ProtocolError
from firetrail.pace.limited_log import LimitedLog
from firetrail.pace.periodic import repeat, woken
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_headers import LogRecordsHeader
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.broker_store import BrokerStore
from firetrail.store.integrity.damage_ledger import DamagedPlace
from firetrail.store.integrity.log_scrub import DamagedRange
from firetrail.store.queues.queue_table import QueueKey
from firetrail.system import Clock

PIECE = 1 << 20
"""Bytes of the log in one request."""
REQUEST_S = 10.0
RETRY_S = 5.0
"""Pause before the next attempt while consumers wait for a repair."""
CALM_S = 60.0
"""Pause before the next attempt if no consumer waits: another broker may be reachable by then."""

_log = logging.getLogger(__name__)


class RecordRepair:
    """Repairs the damage that readers and scrubs of a store find, while the broker runs.

    Args:
        store: The store.
        client: Asks the other brokers.
        peers: Returns the addresses of the other brokers with the same log.
        wake: Called with each queue whose consumers have waited for a repair.
        clock: The time.
    """

    def __init__(
        self,
        store: BrokerStore,
        client: RemotingClient,
        peers: Callable[[], Awaitable[Collection[str]]],
        wake: Callable[[QueueKey], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._ledger = store.damage
        self._client = client
        self._peers = peers
        self._wake = wake
        self._limited_log = LimitedLog(_log, clock.monotonic)
        self._is_due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Repair from now on; consumers wait for it."""
        loop = asyncio.get_running_loop()

        def found(place: DamagedPlace) -> None:
            self._limited_log.log(logging.ERROR, "found", f"a record is damaged: {place.error}")
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._is_due.set)

        self._ledger.on_found = found
        self._task = loop.create_task(
            repeat(self._step, "damaged records cannot be repaired; will retry", _log)
        )

    async def stop(self) -> None:
        """End the repairs; consumers skip damaged messages from now on."""
        self._ledger.on_found = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _step(self) -> float:
        await self.round()
        is_awaited = any(not place.is_given_up for place in self._ledger)
        await woken(self._is_due, RETRY_S if is_awaited else CALM_S)
        return 0.0

    async def round(self) -> None:
        """Try to repair all known damage once."""
        places = list(self._ledger)
        peers = await self._peers() if places else ()
        for place in places:
            await self._settle(place, peers)

    async def _settle(self, place: DamagedPlace, peers: Collection[str]) -> None:
        """Repair a damaged place, or let consumers skip it if that is not possible in time."""
        if place.is_given_up and not peers:
            return
        reasons: list[str] = [] if peers else ["no other broker of this name is known"]
        try:
            found = await asyncio.to_thread(self._examine, place)
            source = await self._copy(place, found, peers, reasons) if found is not None else ""
        except (OSError, FiretrailError) as error:
            reasons.append(str(error))
            source = None
        if source is not None:
            is_there = place.physical_offset >= self._store.log.min_offset
            self._ledger.settle(place, is_repaired=is_there)
            if source:
                text = f"repaired with the copy of {source}: {place.error}"
                self._limited_log.log(logging.WARNING, "repaired", text)
        elif not place.is_given_up:
            if peers and not self._ledger.is_overdue(place):
                return
            place.is_given_up = True
            why = "; ".join(reasons)
            text = f"a record is not repaired, and consumers skip it: {place.error} ({why})"
            self._limited_log.log(logging.ERROR, "given up", text)
        for queue in place.queues:
            self._wake(queue)

    def _examine(self, place: DamagedPlace) -> DamagedRange | None:
        """Return the damage at a place now; None if there is a good record."""
        is_misplaced = self._store.reads.is_misplaced(place)
        return self._store.log_scrub.examine(place.physical_offset, is_misplaced=is_misplaced)

    async def _copy(
        self, place: DamagedPlace, damage: DamagedRange, peers: Collection[str], reasons: list[str]
    ) -> str | None:
        """Replace a damaged part of the log; return the broker that had it, None if none did."""
        for peer in peers:
            try:
                await self._copy_from(peer, damage)
                if await asyncio.to_thread(self._examine, place) is None:
                    return peer
                reasons.append(f"{peer}: it has the same record")
            except (OSError, TimeoutError, FiretrailError) as error:
                reasons.append(str(error) if peer in str(error) else f"{peer}: {error}")
        return None

    async def _copy_from(self, peer: str, damage: DamagedRange) -> None:
        if await self._ask(peer, damage.end, 1) != damage.next_record:
            raise DivergedError(f"it has another record at offset {damage.end}")
        at = damage.begin
        while at < damage.end:
            records = await self._ask(peer, at, min(PIECE, damage.end - at))
            if at + len(records) > damage.end:
                raise ProtocolError(f"its record at {at} ends after {damage.end}")
            at = await asyncio.to_thread(self._store.log_patch.write, at, records)

    async def _ask(self, peer: str, offset: int, size: int) -> bytes:
        header = LogRecordsHeader(offset, size)
        command = RemotingCommand(RequestCode.GET_LOG_RECORDS, header.encode())
        return (await self._client.ask(peer, command, REQUEST_S)).content
