"""The terms of a broker, one after the other: a change of role ends one and begins the next.

Requests that arrive between two terms wait for the next one. A master that hands over is *frozen*
before: requests that would change anything wait, and neither its log nor its tables change, so that
its successor can copy them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from firetrail.broker.broker_conf_file import check_id
from firetrail.broker.roles.failover import rewind_store
from firetrail.broker.roles.held_requests import HeldRequests
from firetrail.broker.term import Term, TermPlan
from firetrail.errors import DiskFullError, ReplicationError
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.requests import CHANGING
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.replication.replica.master_check import MasterAddress
from firetrail.store.admission.gate import Closure
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import NO_SPACE

FREEZE_S = 2.0
"""The time that requests in progress may take to finish before a hand-over."""
FREEZE_POLL_S = 0.005

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Another role of a broker.

    Attributes:
        role: The new role.
        broker_id: The new broker id; 0 for a master, at least 1 for a slave.
        epoch: The number of the epoch that begins with a new master. Default: 0, which leaves the
            number to the term.
        master_address: The master of a slave that does not ask name servers for it. Default: empty,
            which changes nothing.
        known_epoch: The largest number of an epoch that the broker has heard of. Default: none.
    """

    role: BrokerRole
    broker_id: int
    epoch: int = 0
    master_address: str = ""
    known_epoch: int = 0


class Terms:
    """The current term of a broker, and its replacement by another one.

    Attributes:
        current: The current term, after :meth:`open`.
        is_stopping: Whether the broker is being stopped, so that no term follows.
    """

    current: Term

    def __init__(
        self,
        handlers: dict[int, Handler],
        lasting: Mapping[int, Handler],
        drain: Callable[[], Awaitable[None]],
        server: RemotingServer,
    ) -> None:
        """Initialize.

        Args:
            handlers: The handlers of the broker, which are replaced with each term.
            lasting: Those that also answer between two terms.
            drain: Waits until all requests in progress are finished.
            server: Calls the handlers.
        """
        self._handlers = handlers
        self._lasting = lasting
        self._drain = drain
        self._server = server
        self._held = HeldRequests(server.ask)
        self._changing = asyncio.Lock()  # held during the start and a change of role
        self.is_stopping = False

    def open(self, plan: TermPlan) -> None:
        """Open the first term, and serve its handlers and the lasting ones. The caller starts it.

        Raises:
            OSError: A file cannot be read.
            StoreError: The store cannot be opened.
            UnsupportedError: The folder needs a feature of RocketMQ that Firetrail lacks.
        """
        term = Term(plan, self._drain)
        term.open()
        self.current = term
        self._handlers.update(term.handlers)
        self._handlers.update(self._lasting)

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Let changes of the role wait until the first term has started, or has failed to.

        Requests for a change are answered as soon as the ports are open. A change that did not wait
        would end the first term while it starts, and its services would start nevertheless.
        """
        async with self._changing:
            yield

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[None]:
        """Wait for a change in progress, and begin no other term from now on."""
        async with self._changing:
            self.is_stopping = True
            self._held.refuse()
            yield

    async def become(self, change: RoleChange) -> None:
        """End the current term and begin one in another role: see :meth:`Broker.become`."""
        async with self._changing:
            before = self._same_plan()
            env, role = before.env, change.role
            plan = replace(
                before,
                store=before.store.replace(role=role),
                epoch=change.epoch,
                known_epoch=change.known_epoch,
                topics_known_ms=self.current.topics_known_ms,
            )
            config, is_slave = env.live.current, role is BrokerRole.SLAVE
            changed = config.replace(
                broker_id=change.broker_id,
                master_address=change.master_address or config.master_address,
                namesrv=config.namesrv if is_slave else ";".join(config.name_servers_as_master),
            )
            check_id(changed, plan.store)
            epochs, notes = env.epochs.epochs, env.slave_mark.notes
            try:
                await self.end()
                if before.store.role is not BrokerRole.SLAVE:
                    env.slave_mark.learn_role(before.store.role.value)
                env.live.current = changed
                await self._begin(plan)
            except BaseException:
                _log.exception("the broker cannot become %s; it continues as before", role.value)
                env.live.current = config
                env.epochs.save(epochs)
                env.slave_mark.save(notes)
                await self._begin(before)
                raise

    async def rewind(self, master: MasterAddress, *, keep_confirmed: bool = False) -> None:
        """Rewind the store between two terms of the same role: see :meth:`Broker.rewind`."""
        async with self._changing:
            plan = self._same_plan()
            env = plan.env
            kept = self._confirmed_end() if keep_confirmed else 0
            await self.end()
            try:
                await rewind_store(env.system, env.folder, master, env.client_access, kept)
                env.slave_mark.rewound()
            finally:
                await self._begin(plan)

    def _confirmed_end(self) -> int:
        """Return the offset before which a SYNC_MASTER of the group has acknowledged the log.

        An ASYNC_MASTER does not wait for confirmations. If the last master was one, only those of
        the time before count.
        """
        store = self.current.store
        last_role = self.current.plan.env.slave_mark.notes.master_role
        is_async = last_role == BrokerRole.ASYNC_MASTER.value
        return store.kept_confirmed_end if is_async else store.log.confirmed_end

    def _same_plan(self) -> TermPlan:
        """Return a plan to continue in the present role, with the settings in force."""
        return replace(self.current.plan, store=self.current.store.config, epoch=0)

    async def _begin(self, plan: TermPlan) -> None:
        term = Term(plan, self._drain)
        term.open(self.current.parts.state.clients)
        self.current = term
        self._handlers.update(term.handlers)
        try:
            await term.start()
        except BaseException:
            await self.end()
            raise
        self._held.release()

    async def freeze(self, reason: str) -> None:
        """Change neither log nor tables, until :meth:`thaw` or the next term.

        Requests that would change them wait; others do not create topics and groups on demand.
        Requests in progress are finished first.

        Args:
            reason: The reason; for the status.

        Raises:
            ReplicationError: A request takes too long.
            OSError: The progress of the timer cannot be saved, but not for lack of space.
        """
        term = self.current
        codes = CHANGING & self._handlers.keys()
        self._handlers.update(dict.fromkeys(codes, self._held.hold))
        term.store.is_quiet = True
        self._freeze_tables(frozen=True)
        term.parts.state.long_polling.release()
        loop, running = asyncio.get_running_loop(), self._server.running
        deadline = loop.time() + FREEZE_S
        while term.parts.transactions.is_checking or any(running[code] for code in codes):
            if loop.time() > deadline:
                raise ReplicationError(
                    f"requests in progress were not finished within {FREEZE_S:g} seconds"
                )
            await asyncio.sleep(FREEZE_POLL_S)
        term.store.gate.shut(Closure.HANDOVER, reason)
        try:
            await term.parts.timer.save()
        except (OSError, DiskFullError) as error:
            if isinstance(error, OSError) and error.errno not in NO_SPACE:
                raise
            # The successor begins with the progress before, and looks up what was delivered since.
            _log.warning("the progress of the timer is not saved before the hand-over: %s", error)

    def _freeze_tables(self, *, frozen: bool) -> None:
        state = self.current.parts.state
        state.topics.is_frozen = state.groups.is_frozen = frozen

    def thaw(self) -> None:
        """End the freeze of this term."""
        term = self.current
        term.store.is_quiet = False
        self._freeze_tables(frozen=False)
        term.store.gate.lift(Closure.HANDOVER)
        codes = CHANGING & term.handlers.keys()
        self._handlers.update({code: term.handlers[code] for code in codes})
        self._held.release()

    async def end(self) -> None:
        """End the current term; requests wait for the next one.

        Raises:
            OSError: A file cannot be saved.
            StoreError: The store cannot be closed cleanly.
        """
        if not self.is_stopping:
            codes = self._handlers.keys() - self._lasting.keys()
            self._handlers.update(dict.fromkeys(codes, self._held.hold))
            if self.current.relay is not None:
                self.current.relay.hold = self._held.hold
            self.current.parts.state.long_polling.release()
        await self.current.end()
