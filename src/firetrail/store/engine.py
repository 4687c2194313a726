"""The parts of an open store and their threads: how they start, stop and fail.

Theory of operation. The log is the truth; queues and index are derived from it and can always be
derived again. Five kinds of threads share the work, and positions in the log say how far each is:

- *Callers* append under the lock of the log: *wrote*. If they must, they wait for the others.
- The *flusher* syncs the log: *flushed*. With SYNC_FLUSH it ends the waits of callers.
- The *dispatcher* derives queues and index: *dispatched*. It follows the log only up to what was
  synced (SYNC_FLUSH) and confirmed by replicas (SYNC_MASTER), because consumers must not see a
  message that could still be lost. The event loop of a broker may take its steps, one at a time.
- The *housekeeper* syncs what was derived, then writes the watermark, the position from which the
  next opening recovers after a crash. It also applies retention.
- The *allocator* prepares the next file of the log.

An engine goes through these states, each moved by one method::

    __init__: lock the folder -> _build: recover, restore -> _start: threads -> withhold_tail: open
    open --fail()--> failed: reads continue, puts are refused until the store is opened again
    open or failed --stop()--> refuse puts -> flush -> dispatch the rest -> note the end -> closed
    open --fork--> the copy in the child: refuses puts, touches no file and no lock

The order of the start is forced. The log must be recovered before queues can be compared with it,
and queues before numbers can be given to messages; ``Startup`` does both and leaves the files in
agreement. What it changed is synced before the ``abort`` file and the watermark claim so. Threads
start last. The stop is the reverse: what feeds a part ends before the part does, and only a stop in
which everything was dispatched and synced removes the ``abort`` file. If anything fails on the way,
the file stays and the next opening recovers: stopping is never more than an optimization.

*The unconfirmed tail.* After a crash of a SYNC_MASTER, it is unknown which replicas have the last
part of the log. Recovery nevertheless derives it, because a broker reads its own queues to the end
when it starts (``loading``). Then ``withhold_tail`` lets queues end where dispatch had arrived, and
the dispatcher shows the rest as replicas confirm it. The units stay in place and are found again.

*Failure.* A failed sync is never repeated, because the kernel may have dropped the pages. ``fail``
only shuts the gate, from any thread, and the first error is the one that ``stop`` raises.
``docs/design/architecture.md`` lists the locks and the order in which they are taken.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from firetrail.errors import (
    DiskFullError,
    FlushFailedError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
)
from firetrail.format.files.index import IndexGeometry
from firetrail.format.names import COMMIT_LOG, INDEX
from firetrail.settings.settings_table import Live
from firetrail.store.admission.drafter import Drafter
from firetrail.store.admission.gate import Closure, Gate
from firetrail.store.dispatch.arrivals import Arrivals
from firetrail.store.dispatch.derivation import DerivePolicy, Deriver
from firetrail.store.dispatch.description import RecordDescription
from firetrail.store.dispatch.dispatcher import Dispatcher
from firetrail.store.dispatch.loop_dispatch import LoopDispatch
from firetrail.store.evidence.inventory import take_stock
from firetrail.store.index.index import Index
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.flusher import LogFlusher, ThreadWaiter
from firetrail.store.log.paths import settle_paths
from firetrail.store.log.replica_acks import ReplicaAcks, starts_unconfirmed
from firetrail.store.put.queue_appends import QueueAppends
from firetrail.store.put.writer import Durability, Writer
from firetrail.store.queues.queue_table import QueueTable
from firetrail.store.reads.queue_lookups import QueueLookups
from firetrail.store.reads.reader import Reader
from firetrail.store.recovery.startup import Startup
from firetrail.store.retention.disk_space import DiskSpace
from firetrail.store.retention.housekeeper import Housekeeper
from firetrail.store.retention.retention import Retention
from firetrail.store.root.confirmed_file import ConfirmedFile
from firetrail.store.root.folder import AbortFile, FolderLock, prepare_folder
from firetrail.store.root.sizes import adopt_sizes
from firetrail.store.root.store_parts import StoreParts
from firetrail.store.root.watermark import Watermark, WatermarkFile
from firetrail.store.settings.store_config import BrokerRole, FlushMode, StoreConfig
from firetrail.store.stats import Statistics
from firetrail.system import NO_SPACE, System
from firetrail.text import human_size

_log = logging.getLogger(__name__)
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """An open store without its public interface."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        system: System,
        *,
        in_group: bool = False,
        loading: bool = False,
    ) -> None:
        """Open a store.

        Args:
            root: The folder.
            config: The settings.
            system: Files and clock.
            in_group: Whether the store belongs to a member of a group with failover. Default:
                False.
            loading: Whether messages that replicas have to confirm can be read until
                :meth:`withhold_tail` is called. Default: False.
        """
        prepare_folder(system, root)
        self._in_group = in_group
        self.root = root.absolute()  # the process may change its folder before files are created
        self.system = system
        self.failure: BaseException | None = None
        self.is_closed = False
        """Whether :meth:`stop` has ended; reads are no longer possible."""
        self._stopped = False
        self._is_forked_copy = False  # whether the process that forked this one owns the store
        with ExitStack() as resources:  # closed here if the store cannot be opened
            lock = FolderLock(system, root)
            resources.callback(lock.release)
            self._lock = lock
            self._resources = resources
            try:
                self._log_paths = settle_paths(system.files, self.root, config)
                if self._log_paths is not None:
                    lock.hold(self._log_paths.outside(self.root))
                self._build(adopt_sizes(system, root, config))
                self._start()
                if not loading:
                    self.withhold_tail()
            except OSError as error:
                kind = DiskFullError if error.errno in NO_SPACE else StoreError
                raise kind(f"{root}: cannot be opened for writing: {error}") from error
            self._resources = resources.pop_all()
        _engines.add(self)

    @property
    def config(self) -> StoreConfig:
        """The settings in force; :meth:`configure` replaces them."""
        return self.live.current

    @property
    def log_folders(self) -> tuple[Path, ...]:
        """The folders with the files of the log."""
        return self._log_paths.all if self._log_paths else (self.root / COMMIT_LOG,)

    def _build(self, config: StoreConfig) -> None:
        system, root = self.system, self.root
        self.live = live = Live(config)
        self.gate = Gate(system.threads)
        self.arrivals = Arrivals(system.threads)
        self.drafter = Drafter(config)
        self.queues = QueueTable(system, root, config.consume_queue_file_size)
        spread = self._log_paths and self._log_paths.spread(
            system.files, lambda: live.current.disk_clean_forcibly_ratio
        )
        self.log = CommitLog(system, root, config, self.drafter.rules, self.queues.loaded, spread)
        self.description = RecordDescription(self.log.queue)
        self.queues.extend(
            config.extension_file_size, self.description if config.extended_queues else None
        )
        self._resources.callback(self.log.stop)
        self._resources.callback(self.queues.close)
        geometry = IndexGeometry(config.index_slots, config.index_entries)
        self.index = Index(system, root, geometry) if config.index_enabled else None
        if self.index is not None:
            self._resources.callback(self.index.close)
        self._parts = StoreParts(system, self.root, live, self.log, self.queues, self.index)
        self._abort = AbortFile(system, root)
        by_java = self._lock.last_held_by_java
        self._startup = startup = Startup(
            self._parts, self._abort, self._log_paths, by_java=by_java
        )
        with self.queues.open_segments.opening_all(system.files.run_in_threads):
            self.recovery = startup.run()
        self.inventory = startup.inventory
        self.missing_config = startup.missing_config
        self.drafter.rules.light_queues = config.light_queues or self.queues.has_light_queues
        self.dispatcher = dispatcher = Dispatcher(self.log, self._new_deriver(), self.fail)
        self.reader = Reader(
            self.log.queue, self.queues, self.index, live, lambda: dispatcher.position
        )
        self.lookups = QueueLookups(self.queues, self.log, self.reader, self.check_open)
        dispatcher.listeners.append(self.arrivals.notice)
        self.confirmed = self._open_confirmed(by_java=by_java)
        self._begin_dispatch()
        self.dispatch = LoopDispatch(self.log, dispatcher)
        self.acks = ReplicaAcks(self.log, live, self.dispatch.confirmed, in_group=self._in_group)
        self.space = DiskSpace(self._parts, self.gate)
        self.flusher = LogFlusher(self.log, live, self.dispatcher.wake_if_idle, self.fail)
        self.retention = Retention(
            self._parts,
            self.gate,
            self._settled,
            self.inventory.note_retention,
            self.acks.retained_from,
            self.space.used_ratio,
        )

    def _new_deriver(self) -> Deriver:
        """Return the deriver of queues and index for records that are appended from now on."""
        config, startup = self.config, self._startup
        batched = startup.batched
        policy = DerivePolicy(
            config.delay_levels,
            self.drafter.rules.light_queues,
            startup.has_tag_entries,
            index_from=self.recovery.end,
            wants=(lambda run: run.topic not in batched) if batched else None,
            # In an unconfirmed part, topics may have been created again.
            copying=config.role is BrokerRole.SLAVE or self._is_tail_unconfirmed,
        )
        return Deriver(self.queues, self.index, policy)

    def _begin_dispatch(self) -> None:
        """Set the position at which dispatch continues: after the part that was dispatched, and
        therefore confirmed, before.

        Recovery has derived queues and index from the whole log, because a broker reads its own
        queues to the end when it starts. After an unclean stop, the part after the watermark is
        dispatched again: as far as it is known to be confirmed at once, and then as replicas
        confirm it.
        """
        report, mark, file = self.recovery, self._startup.watermark, self.confirmed
        shown = Watermark(False, 0, report.end, report.last_record_offset, report.last_store_time)
        if self._is_tail_unconfirmed and mark is not None:
            shown = mark._replace(dispatched_offset=min(report.scanned_from, report.end))
        kept = min(file.end.offset, report.end) if file is not None else 0
        self.log.once_confirmed = max(shown.dispatched_offset, kept)
        if file is not None:
            self.log.keep_confirmed = file.note
            self.log.is_confirmed_end_known = report.clean or file.found is not None
        self.dispatcher.begin_at(
            shown.dispatched_offset, shown.last_record_offset, shown.last_store_time
        )

    def _open_confirmed(self, *, by_java: bool) -> ConfirmedFile | None:
        """Open the file with the confirmed end; None if no replica confirms this log."""
        config, report, is_slave = self.config, self.recovery, self.config.role is BrokerRole.SLAVE
        if not self._in_group and not starts_unconfirmed(config, in_group=False):
            return None
        file = ConfirmedFile(self.system, self.root)
        self._resources.callback(file.close)
        missing = file.end.offset - report.end
        if missing > 0 and not by_java:
            _log.warning(
                "%s: the log ends at %d, but replicas had confirmed it up to %d: %s are missing%s",
                self.root,
                report.end,
                file.end.offset,
                human_size(missing),
                "" if is_slave else ", and are given up, because this broker is the master now",
            )
        was_cut = not report.clean and config.flush is not FlushMode.SYNC and file.is_other_boot
        file.begin(report.end, is_decided=not is_slave, by_java=by_java, may_lack_tail=was_cut)
        return file

    @property
    def _is_tail_unconfirmed(self) -> bool:
        """Whether replicas may lack the part of the log that recovery has scanned."""
        unconfirmed = starts_unconfirmed(self.config, in_group=self._in_group)
        found_mark = self._startup.watermark is not None
        return unconfirmed and found_mark and not self.recovery.clean

    def withhold_tail(self) -> None:
        """End the queues at the position of dispatch, to hide messages that replicas have not
        confirmed.

        They must not be read during this call.
        """
        with self.housekeeper.paused(), self.dispatcher.paused():
            shown, end = self.dispatcher.position, self.log.max_offset
            if shown >= end:
                return
            self.queues.withhold(shown)
            self.reader.forget_cursors()
        is_slave = self.config.role is BrokerRole.SLAVE
        _log.log(
            logging.INFO if is_slave else logging.WARNING,
            "%s: consumers do not see the last %s of the log, from offset %d on, before %s",
            self.root,
            human_size(end - shown),
            shown,
            "this replica follows its master" if is_slave else "replicas have confirmed it",
        )

    def _start(self) -> None:
        """Sync the recovered log, mark the store as open and start the threads."""
        report = self.recovery
        # Readers recognize a store by this folder, even if no message was put yet.
        if self._log_paths is None:
            self.system.files.make_folder(self.log.queue.folder)
        if not report.clean:
            for segment in self.log.queue.from_offset(report.scanned_from):
                segment.sync()
            self._sync_names()
        self.queues.flush()
        if self.index is not None and self.index.files:
            self.index.flush()
        if not self._startup.is_listed:
            self._note_files(report.end)
        self._lock.sign()
        self.log.start(report.last_store_time)
        watermark_file = WatermarkFile(self.system, self.root)
        self._resources.callback(watermark_file.close)
        self.housekeeper = Housekeeper(
            self._parts, self.dispatcher, watermark_file, self.retention, self.inventory, self.fail
        )
        if self.confirmed is not None:
            self.housekeeper.before_watermark = self.confirmed.sync
        self.housekeeper.write_watermark(clean=False)
        self._is_sealed = self.config.property_crc
        self._abort.create(sealed=self._is_sealed)
        if self.config.role is BrokerRole.SLAVE:
            self.gate.shut(Closure.SLAVE)
        self.writer = self._new_writer()
        for part in (self.dispatcher, self.flusher, self.housekeeper):
            part.start()
            self._resources.callback(part.stop)

    def _new_writer(self) -> Writer:
        self.statistics = statistics = Statistics(self.log.appender)
        self.durability = durability = Durability(
            self._parts, self.gate, self.flusher, self.acks, self.dispatch, statistics
        )
        appends = QueueAppends(
            self.log, self.queues, self._startup.batched, self.drafter, self.dispatcher
        )
        return Writer(self.log, self.gate, appends, durability, self.dispatch, self._put_failed)

    def _put_failed(self, error: Exception) -> None:
        """Look for space, or refuse further messages, after a put could not write a file."""
        if isinstance(error, DiskFullError):
            self.housekeeper.note_full_disk()
        else:
            self.fail(error)

    def note_unsealed(self) -> None:
        """Note durably that records without a checksum over the whole record follow.

        Recovery would otherwise take them for torn. A replica gets records as its master has them.
        """
        if self._is_sealed:
            self._abort.create(sealed=False)
            self._is_sealed = False

    def _sync_names(self) -> None:
        """Sync the folders whose entries a killed process may have just created.

        The files of a queue to which recovery added nothing were synced before its last unit.
        """
        folders = {self.root, *self.log_folders, self.root / INDEX}
        for queue in self.queues.dirty:
            folder = queue.files.folder
            folders |= {folder, folder.parent, folder.parent.parent}
        files = self.system.files
        existing = [folder for folder in sorted(folders) if folder.is_dir()]
        files.run_in_threads([partial(files.sync_folder, folder) for folder in existing])

    def _settled(self) -> int:
        """Sync queues and index; return the position up to which they and the log are on disk."""
        return min(self.housekeeper.settle_derived(), self.log.flushed_offset)

    def fail(self, error: BaseException) -> None:
        """Refuse further messages: a write has failed in a way that must not be retried."""
        if self.failure is None:
            self.failure = error
        remedy = "" if isinstance(error, StoreDamagedError) else "; reopen the store to write again"
        self.gate.shut(Closure.FAILED, f"{error}; reads continue{remedy}")

    def check_open(self) -> None:
        """Raise StoreClosedError after :meth:`stop`."""
        if self.is_closed:
            raise StoreClosedError(f"{self.root}: the store is closed; open it again")

    def flush(self) -> None:
        """Return when all messages put so far are on disk; raise FlushFailedError if that fails."""
        self.check_open()
        waiter = ThreadWaiter(self.log.max_offset, self.system.threads)
        self.flusher.add(waiter)
        waiter.wait(-1)
        if not waiter.durable:
            raise FlushFailedError(f"not everything is on disk: {self.gate.refusal}")

    @property
    def is_stopped(self) -> bool:
        """Whether the store is closed or belongs to another process, so that there is nothing to
        close."""
        return self._is_forked_copy or self._stopped

    def stop(self, within_s: float | None = None) -> None:
        """Finish all work, mark the store as cleanly closed and release it.

        With ``within_s``, work that takes longer is left to the next opening, which then recovers:
        the log is on disk, but the queues and the index may lack the last messages. The limit is
        exceeded only if a sync takes longer.

        Raises FlushFailedError if not everything could be synced; the next opening then recovers
        the store.
        """
        if self._is_forked_copy:
            self.is_closed = True
            return
        self._stopped = True
        try:
            with self._resources:
                self._finish(within_s)
        except OSError as error:  # raised while closing a file
            self.fail(error)
        finally:
            self.is_closed = True
        if self.failure is not None:
            raise FlushFailedError(
                f"{self.root}: closed after a failure; not everything is on disk: {self.failure}"
            ) from self.failure

    def _finish(self, within_s: float | None) -> None:
        clock = self.system.clock
        over_at = clock.monotonic() + (within_s or 0)

        def is_over() -> bool:
            return within_s is not None and clock.monotonic() > over_at

        self.gate.shut(Closure.CLOSED)
        self.arrivals.close()
        self.log.refuse_appends()
        try:
            self.acks.give_up()
            self.housekeeper.stop()
            self.flusher.stop()
            self.dispatcher.stop(is_over)
            if self.failure is None:
                self._note_end(is_over)
        except (OSError, StoreError, MemoryError) as error:
            self.fail(error)

    def _note_end(self, is_over: Callable[[], bool]) -> None:
        """Mark the store as cleanly closed, unless work is left to the next opening.

        Messages that lack the confirmation of replicas are such work: the next opening has to know
        where they begin.
        """
        is_dispatched = self.dispatcher.position >= self.log.dispatchable()
        if not is_dispatched or not self.housekeeper.flush_derived(is_over):
            return
        if self.dispatcher.position < self.log.readable_offset:
            self.housekeeper.write_watermark(clean=False)
            return
        self._note_files(self.log.flushed_offset)
        self.housekeeper.write_watermark(clean=True)
        self._abort.remove()

    def _note_files(self, log_end: int) -> None:
        """Write the inventory of the store's files, which are on disk, as is the whole log."""
        log_begin = self.log.queue.min_offset
        stock = take_stock(self.system, self.root, log_begin, self.queues, self.index)
        self.inventory.write(stock._replace(durable_offset=log_end))

    def configure(self, changed: StoreConfig) -> None:
        """Apply changed settings that ``check_changes`` has accepted."""
        self.live.current = changed
        self.reader.forget_cursors()
        self.acks.settings_changed()
        self.drafter.rules.body_max = changed.max_message_size
        self.drafter.rules.record_max = changed.max_record_size

    def leave_to_parent(self) -> None:
        """Write nothing after a fork: the parent process keeps the threads and the lock."""
        self._is_forked_copy = True
        self._lock.leave_to_parent()
        self.gate.shut_for_good("another process has the store open; open it again after a fork")
        self.flusher.give_up()


def _after_fork() -> None:
    for engine in list(_engines):
        engine.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
