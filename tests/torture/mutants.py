"""Seeded bugs for brokers in real processes: the torments must catch each.

``python -m tests.torture.mutants <bug> up <arguments>`` is ``firetrail up`` with that bug.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.crash.oracle import Violation
from tests.torture import scene
from tests.torture.clients import load
from tests.torture.kills import KILLED_USES, kills
from tests.torture.process import BrokerProcess
from tests.torture.records.ledger import Ledger
from tests.torture.scene import scene_of
from tests.torture.syncs import check_failed_sync

from firetrail.broker.pop.pop_checkpoints import REVIVE_GROUP, PopCheckpoints
from firetrail.broker.processors.recall_processor import RecallProcessor
from firetrail.broker.processors.send_back_processor import SendBackProcessor
from firetrail.broker.services.schedule import ScheduleService
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.saver import Saver
from firetrail.broker.timer.timer_service import TimerService
from firetrail.broker.transactions.transactions import Transactions
from firetrail.cli.main import main
from firetrail.remoting.messages.bodies import ConsumerOffsets
from firetrail.remoting.messages.headers import RecallHeader, RecallResponse
from firetrail.store.broker_store import BrokerStore
from firetrail.store.results import PutResult, PutStatus
from firetrail.system import Files

LATE_S = 0.3
"""How much later a bug does what it has said it did."""
KILLS = 30


def buffered() -> None:
    """Messages wait in the memory of the process: acknowledged before they are written."""
    opening = BrokerStore.open.__func__  # type: ignore[attr-defined]

    def open_pooled(cls: Any, /, folder: Any, config: Any, **options: Any) -> Any:
        pooled = config.replace(write_buffer_pool=True, commit_interval_ms=500)
        return opening(cls, folder, pooled.replace(commit_least_pages=1000), **options)

    BrokerStore.open = classmethod(open_pooled)  # type: ignore[assignment]


def ends_not_noted() -> None:
    """Store the message of a committed transaction, but not the end of the transaction."""
    put = Transactions._put

    async def without_marks(self: Any, message: Any) -> Any:
        is_mark = message.topic.endswith("_OP_HALF_TOPIC")
        return PutResult(PutStatus.PUT_OK) if is_mark else await put(self, message)

    Transactions._put = without_marks  # type: ignore[method-assign]


def ends_answered_early() -> None:
    """Acknowledge the end of a transaction before it is stored."""
    store_end = Transactions._store_end

    async def later(self: Any, half: Any, committed: Any) -> PutResult:
        async def store() -> None:
            await asyncio.sleep(LATE_S)
            await store_end(self, half, committed)

        self.late = asyncio.ensure_future(store())
        return PutResult(PutStatus.PUT_OK)

    Transactions._store_end = later  # type: ignore[method-assign]


def acks_not_noted() -> None:
    """Pops are acknowledged in memory only."""

    def forget(self: Any, point: Any, offsets: Any, *, wait: bool = True) -> None:
        self._close(point, point.open.intersection(offsets))

    PopCheckpoints.ack = forget  # type: ignore[method-assign]


def pops_not_kept() -> None:
    """Pops that are open count as done."""

    def all_done(self: Any) -> None:
        for queue, last in self._last.items():
            self._offsets.commit(REVIVE_GROUP, self._topics.revive, queue, last)

    PopCheckpoints.save_progress = all_done  # type: ignore[method-assign]


def offsets_ahead() -> None:
    """Offsets are saved a little ahead of what was committed."""

    def ahead(self: Any) -> ConsumerOffsets:
        return ConsumerOffsets(
            {key: {q: offset + 2 for q, offset in o.items()} for key, o in self._offsets.items()}
        )

    OffsetTable.content = ahead  # type: ignore[method-assign]


def retries_answered_early() -> None:
    """Acknowledge a message that a consumer sends back before its copy is stored."""
    send_back = SendBackProcessor._send_back

    def later(self: Any, connection: Any, request: Any) -> Any:
        asyncio.get_running_loop().call_later(LATE_S, send_back, self, connection, request)
        return request.answer()

    SendBackProcessor._send_back = later  # type: ignore[method-assign]


def saves_not_waited_for() -> None:
    """Topics and groups are answered before they are saved."""
    save = Saver._save

    async def later(self: Any) -> None:
        await asyncio.sleep(LATE_S)
        await save(self)

    async def at_once(self: Any) -> None:
        self.save_changes()

    Saver._save, Saver.saved = later, at_once  # type: ignore[method-assign]


def delays_ahead() -> None:
    """Delayed messages count as delivered before they are."""
    content = ScheduleService.content

    def ahead(self: Any) -> Any:
        found = content(self)
        return type(found)({level: offset + 3 for level, offset in found.offset_table.items()})

    ScheduleService.content = ahead  # type: ignore[method-assign]


def timers_ahead() -> None:
    """Timer messages count as delivered a little before they are."""
    TimerService._delivered_ms = property(  # type: ignore[assignment, method-assign]
        lambda self: self.read_ms + 2_000
    )


def recalls_answered_early() -> None:
    """Acknowledge a recall before its mark is stored."""
    recall = RecallProcessor._recall

    def later(self: Any, connection: Any, request: Any) -> Any:
        handle = self._checked(RecallHeader.decode(request.fields))
        asyncio.get_running_loop().call_later(LATE_S, recall, self, connection, request)
        return request.answer(fields=RecallResponse(handle.unique_key).encode())

    RecallProcessor._recall = later  # type: ignore[method-assign]


def syncs_repeated() -> None:
    """Retry a failed sync."""
    sync = Files.sync

    def again(self: Any, descriptor: int) -> None:
        try:
            sync(self, descriptor)
        except OSError:
            sync(self, descriptor)

    Files.sync = again  # type: ignore[method-assign]


KILLED: dict[str, tuple[str, Callable[[], None]]] = {
    "a put is acknowledged before it is written": ("ASYNC_FLUSH", buffered),
    "the end of a transaction is not stored": ("SYNC_FLUSH", ends_not_noted),
    "the end of a transaction is acknowledged before it is stored": (
        "ASYNC_FLUSH",
        ends_answered_early,
    ),
    "acknowledgements of pops are not stored": ("ASYNC_FLUSH", acks_not_noted),
    "open pops count as done": ("SYNC_FLUSH", pops_not_kept),
    "offsets are saved ahead": ("ASYNC_FLUSH", offsets_ahead),
    "a message sent back is acknowledged before it is stored": (
        "ASYNC_FLUSH",
        retries_answered_early,
    ),
    "topics and groups are acknowledged before they are saved": (
        "SYNC_FLUSH",
        saves_not_waited_for,
    ),
    "delayed messages are marked before they are delivered": ("ASYNC_FLUSH", delays_ahead),
    "timer messages are marked before they are delivered": ("ASYNC_FLUSH", timers_ahead),
    "a recall is acknowledged before it is stored": ("ASYNC_FLUSH", recalls_answered_early),
}
"""Those that kills must show, with the mode of the broker."""
UNSYNCED: dict[str, tuple[str, Callable[[], None]]] = {
    "a failed sync is retried": ("SYNC_FLUSH", syncs_repeated)
}
"""Those that failed syncs must show."""
BUGS = KILLED | UNSYNCED


class Mutant(BrokerProcess):
    """A broker with a bug."""

    def __init__(self, folder: Path, bug: str) -> None:
        super().__init__(folder, {"flushDiskType": BUGS[bug][0]})
        self._bug = bug

    def _command(self) -> list[str]:
        python, _, _, *arguments = super()._command()
        return [python, "-m", "tests.torture.mutants", self._bug, *arguments]


async def caught(folder: Path, seed: int, bug: str) -> Counter[str]:
    """Torment a broker with a bug; raise a Violation if the bug is not found."""
    try:
        with mock.patch.object(load, "DRAIN_S", 20.0), mock.patch.object(scene, "PATIENCE_S", 15.0):
            async with scene_of(Mutant(folder, bug), Ledger(seed), bug, KILLED_USES) as stage:
                if bug in KILLED:
                    await kills(stage, KILLS)
                else:
                    await check_failed_sync(stage, BUGS[bug][0], "commitlog", 3)
    except Violation as violation:
        return Counter({f"{bug}: {str(violation)[:90]}": 1})
    raise Violation(f"no check has noticed the bug: {bug}")


if __name__ == "__main__":
    BUGS[sys.argv[1]][1]()
    sys.exit(main(sys.argv[2:]))
