"""The store as a server uses it: a whole whose parts suit an event loop.

A put waits for the disk in a coroutine, and for replicas with a callback. It can block the event
loop for a limited time: for the append lock, for dispatch that is far behind, and while it helps to
dispatch (HELP_S). Calls that sync (``embedded.flush``, ``removal.settle``) or delete files belong
in a thread.
"""

import asyncio
from pathlib import Path
from typing import Any, Self

from firetrail.format.files.confirmed import NO_DOUBT
from firetrail.store.checked_store import CheckedReads
from firetrail.store.engine import Engine
from firetrail.store.integrity.log_patch import LogPatch
from firetrail.store.integrity.log_scrub import LogScrub
from firetrail.store.log_copy import LogCopy
from firetrail.store.settings.live_config import check_changes
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.store.store import Store
from firetrail.store.topic_removal import TopicRemoval
from firetrail.system import System


class BrokerStore:
    """A store that a broker has open.

    Attributes:
        embedded: The same store with the interface for programs.
        writer: Stores messages.
        dispatch: Dispatches messages of the event loop.
        reads: Gets messages, and checks them.
        queues: Positions, times and sizes of the queues.
        log: The commit log.
        replica_acks: The confirmations of replicas.
        gate: Refuses puts, for reasons that are lifted separately.
        space: The space on the disks.
        damage: The damaged records that were found and are not repaired.
        log_patch: Copies good records to and from the logs of other brokers.
        log_scrub: Reads the whole log, in steps, to find damage.
        removal: Removes topics.
        description: Describes records for extended units.
        is_quiet: Whether the services of the broker store nothing, because it is about to hand
            over.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.embedded = Store(engine)
        self.writer = engine.writer
        self.dispatch = engine.dispatch
        self.reads = CheckedReads(engine)
        self.queues = engine.lookups
        self.log = engine.log
        self.replica_acks = engine.acks
        self.gate = engine.gate
        self.space = engine.space
        self.damage = self.reads.damage
        self.log_patch = LogPatch(engine.log)
        self.log_scrub = LogScrub(engine.system, engine.root, engine.log, self.damage)
        self.removal = TopicRemoval(engine)
        self.description = engine.description
        self.is_quiet = False

    @classmethod
    def open(
        cls,
        path: Path,
        config: StoreConfig,
        *,
        system: System,
        in_group: bool = False,
        loading: bool = False,
    ) -> Self:
        """Open the store in a folder, or create one there; raises the errors of :meth:`Store.open`.

        Args:
            path: The folder of the store.
            config: The settings.
            system: Files and clock.
            in_group: Whether the broker is a member of a group with failover. Then a master shows
                nothing more until it knows the in-sync set. Default: False.
            loading: Whether messages that replicas have to confirm can be read until
                :meth:`withhold_unconfirmed` hides them. A broker that starts reads its own queues
                before that: They tell which transactions and pops are open. Default: False.
        """
        return cls(Engine(path, config, system, in_group=in_group, loading=loading))

    def close(self, within_s: float | None = None) -> None:
        """Close the store as :meth:`Store.close` does, and end its scrub."""
        self.log_scrub.close()
        self.embedded.close(within_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def withhold_unconfirmed(self) -> None:
        """Hide messages that replicas have yet to confirm until they have."""
        self._engine.withhold_tail()

    def dispatch_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Dispatch the puts of this thread, and wait for their replicas, in its event loop.

        Args:
            loop: The running loop of this thread.
        """
        self.dispatch.attach(loop)
        self._engine.durability.wait_in(loop)

    def log_copy(self) -> LogCopy:
        """Return the log for appending records of a master; the store's role must be SLAVE."""
        return LogCopy(self._engine)

    @property
    def config(self) -> StoreConfig:
        """The settings in force; file sizes are those of the existing files."""
        return self._engine.config

    def configure(self, **changes: Any) -> None:
        """Change settings of the open store; a ConfigError means that none was changed."""
        self._engine.configure(check_changes(self.config, changes))

    @property
    def has_failed(self) -> bool:
        """Whether a write has failed, so that no messages are accepted until the store is
        reopened."""
        return self._engine.failure is not None

    @property
    def shortfall(self) -> str:
        """The reason why the log lacks, or may lack, messages that replicas had confirmed; empty if
        it has them."""
        file, end = self._engine.confirmed, self.log.max_offset
        if file is None or self.config.role is not BrokerRole.SLAVE:
            return ""
        if end < file.end.offset:
            return f"the log ends at {end}, but replicas had confirmed it up to {file.end.offset}"
        if file.end.doubtful_from != NO_DOUBT:
            return (
                "the machine has started again after an unclean stop with ASYNC_FLUSH, so the log "
                f"may lack messages from offset {file.end.doubtful_from} on"
            )
        return ""

    @property
    def kept_confirmed_end(self) -> int:
        """The end of the part of the log that is known to be confirmed by replicas which a
        SYNC_MASTER waited for; 0 if there is none."""
        file = self._engine.confirmed
        return min(file.end.offset, self.log.max_offset) if file is not None else 0

    @property
    def missing_config(self) -> list[str]:
        """Files of the broker that the store had when it was last open and that are missing."""
        return self._engine.missing_config
