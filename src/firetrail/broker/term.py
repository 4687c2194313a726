"""A broker's time in one role: its open store, the parts recovered from it, and their services.

A change of role ends one term and begins another. The store is closed and opened again, so a
promoted replica is recovered by the same code as a master that starts: the numbers of its queues
continue, and its open transactions, pops and delays are loaded from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from firetrail.broker import unsupported
from firetrail.broker.admin.replication_processor import ReplicationProcessor
from firetrail.broker.broker_parts import Environment, Parts, build, combined, handlers_of
from firetrail.broker.processors.lease_check import leased_handlers
from firetrail.broker.replica.epoch_fence import EpochFence
from firetrail.broker.replica.record_repair import RecordRepair
from firetrail.broker.replica.relay import Relay
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.broker.services.clients import Clients
from firetrail.broker.services.ha_admission import HAAdmission
from firetrail.broker.services.ha_peers import HAPeers
from firetrail.broker.services.scrub import ScrubService
from firetrail.broker.state.slave_mark import full_name
from firetrail.broker.takeover import unused_data
from firetrail.format.names import CONFIG
from firetrail.pace.periodic import GuardedStep, every
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.replication.ha.ha_service import HAService
from firetrail.replication.ha.ha_source import HALimits, HASource
from firetrail.replication.log.epochs import Epoch
from firetrail.store.broker_store import BrokerStore
from firetrail.store.evidence.inventory import CONFIG_FILES
from firetrail.store.settings.store_config import BrokerRole, StoreConfig

STOP_S = 2.0
"""The time that a stop may spend on dispatching queues and index. Service managers give a process
little time to stop, and the next start can derive the rest."""
SWEEP_S = 10.0
"""Pause between two searches for expired clients and locks."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TermPlan:
    """The settings and parts that a term is opened with.

    Attributes:
        env: Settings, files and addresses of the broker.
        store: Settings of the store; its role is the role of the term.
        conf: The file that changed settings are written to, None to keep them in memory.
        ignored: Unsupported features of a Java broker's folder that are accepted.
        epoch: The number of the epoch that begins with the term of a master. 0 if one begins only
            if the broker was last a slave; its number is then larger than all that are known.
        known_epoch: The largest epoch number that the broker knows; 0 for none.
        topics_known_ms: The store time up to which the saved topics are complete; 0 if it is not
            known.
    """

    env: Environment
    store: StoreConfig
    conf: Path | None
    ignored: Collection[str]
    epoch: int = 0
    known_epoch: int = 0
    topics_known_ms: int = 0


class Term:
    """A broker in one role.

    :meth:`open` recovers the parts without awaiting anything; :meth:`start` starts their services.

    Attributes:
        plan: The plan that the term was opened with.
        store: The open store.
        parts: The parts that were recovered from it.
        handlers: The handlers of their requests, by request code.
        replica: The service that follows the master, in the term of a slave.
        epoch_fence: The fence against a former master, in the term of a master.
        ha: The service that sends the log to replicas, in the term of a master.
        repair: The service that repairs damaged records.
        scrub: The service that looks for damaged records.
        relay: The relay of requests to the master, in the term of a slave.
    """

    store: BrokerStore
    repair: RecordRepair
    scrub: ScrubService
    parts: Parts
    handlers: dict[int, Handler]

    def __init__(self, plan: TermPlan, drain: Callable[[], Awaitable[None]]) -> None:
        """Prepare a term.

        Args:
            plan: The settings and parts to open it with.
            drain: Waits until all requests in progress are finished. The term calls it at its end,
                before the tables that requests change are saved.
        """
        self.plan = plan
        self._drain = drain
        self.replica: ReplicaService | None = None
        self.epoch_fence: EpochFence | None = None
        self.ha: HAService | None = None
        self.relay: Relay | None = None
        self._begun = 0  # the number of the epoch that began with this term
        self._tasks: list[asyncio.Task[None]] = []
        self._resources = AsyncExitStack()

    @property
    def is_slave(self) -> bool:
        """Whether the broker follows a master in this term."""
        return self.plan.store.role is BrokerRole.SLAVE

    @property
    def topics_known_ms(self) -> int:
        """The store time up to which the topics are complete; 0 if that is not known."""
        return self.replica.tables.status.topics_known_ms if self.replica is not None else 0

    def open(self, clients: Clients | None = None) -> None:
        """Open the store and recover the parts; close everything again if that fails.

        Args:
            clients: The connected clients of the previous term. Default: none.

        Raises:
            OSError: A file cannot be read.
            StoreError: The store cannot be opened.
            UnsupportedError: The folder needs a feature of RocketMQ that Firetrail lacks.
        """
        env = self.plan.env
        refused = unsupported.refused_files(env.system.files, env.folder)
        unsupported.check(refused, self.plan.ignored)
        self.store = BrokerStore.open(
            env.folder,
            self.plan.store,
            system=env.system,
            in_group=env.keeper is not None,
            loading=True,
        )
        try:
            was_slave = env.slave_mark.notes.is_slave
            if self.is_slave:
                env.slave_mark.set(known_epoch=self.plan.known_epoch)
            else:
                self._begin_epoch(was_slave=was_slave)
            self._log_missing_files()
            # A slave's tables are copies of its master's, which may be older than the log.
            state_lags = was_slave or not self.store.embedded.recovery.clean
            known_ms = self.plan.topics_known_ms
            self.parts = parts = build(
                env, self.store, clients, state_lags=state_lags, topics_known_ms=known_ms
            )
            self.store.withhold_unconfirmed()
            self._log_unsupported()
            if self.is_slave:
                self.replica = ReplicaService(env, parts)
                self.relay = self._relay_to(self.replica)
            else:
                self.ha = self._ha_service()
                self.epoch_fence = EpochFence(env, parts)
                self.epoch_fence.begin()
            self.handlers = self._all_handlers()
            if not self.is_slave:
                if env.keeper is not None:  # after a kill, the role tells what was confirmed
                    env.slave_mark.learn_role(self.plan.store.role.value)
                env.slave_mark.clear(full_name(env.live.current))
        except BaseException:
            self.store.close(STOP_S)
            raise
        self._resources.callback(self.store.close, STOP_S)
        if env.keeper is not None:
            env.keeper.attach(self.store)
            self._resources.callback(env.keeper.detach)
        self._stop_at_end(parts)

    def _stop_at_end(self, parts: Parts) -> None:
        """Let the parts stop at the end of the term.

        They stop and save in reverse order: the services that store messages, then the one that
        sends the log to replicas, then the tables that the services change.
        """
        stack = self._resources
        stack.callback(parts.state.traffic.stop)
        if self.relay is not None:
            stack.push_async_callback(self.relay.close)
        state = parts.state
        for table in (state.groups, state.topics, parts.assignment, state.offsets):
            stack.push_async_callback(table.stop)
        if self.ha is not None:
            stack.push_async_callback(self._stop_ha, self.ha)
        if state.selector.filters is not None:
            stack.push_async_callback(state.selector.filters.stop)
        for service in (parts.schedule, parts.timer, parts.orders, parts.revive):
            stack.push_async_callback(service.stop)

    async def start(self) -> None:
        """Register the broker and start the services of its role.

        If this fails, :meth:`end` closes everything that is open.
        """
        parts, stack = self.parts, self._resources
        if self.ha is not None:
            self.ha.start()
        stack.push_async_callback(self._drain)
        stack.push_async_callback(parts.registration.stop)
        await parts.registration.start()
        if self.epoch_fence is not None:
            stack.push_async_callback(self.epoch_fence.stop)
            self.epoch_fence.start()
        stack.callback(parts.state.long_polling.stop)
        parts.state.topics.on_change = parts.registration.changed
        if self.replica is not None:
            self.replica.start()
            stack.push_async_callback(self.replica.stop)
        self._start_repairs()
        parts.timer.start()
        if not self.is_slave:
            parts.schedule.start()
            parts.revive.start()
        stack.push_async_callback(self._stop_tasks)
        self._start_tasks()
        if self._begun:
            role = self.plan.store.role.value
            _log.warning("this broker is now the master (%s), epoch %d", role, self._begun)

    def _start_repairs(self) -> None:
        """Look for damaged records, and repair them from other brokers of the same name."""
        env, state = self.plan.env, self.parts.state
        client = RemotingClient(access=env.client_access)
        wake = state.long_polling.wake_for
        self.repair = RecordRepair(self.store, client, self._peers, wake, env.system.clock)
        self.scrub = ScrubService(self.store)
        for service in (self.repair, self.scrub):
            service.start()
            self._resources.push_async_callback(service.stop)

    async def _peers(self) -> list[str]:
        """Return the addresses of the other brokers of this name, the master's first."""
        master = self.replica.master if self.replica is not None else None
        known = [master.broker] if master is not None else []
        known += sorted(await self._members())
        return [peer for peer in dict.fromkeys(known) if peer != self.plan.env.address]

    def _begin_epoch(self, *, was_slave: bool) -> None:
        """Begin an epoch at the end of the log, if this is the first term of a new master."""
        env, number = self.plan.env, self.plan.epoch
        epochs = env.epochs
        if was_slave and not number:
            known = env.slave_mark.notes.known_epoch
            number = max(epochs.number, known, self.plan.known_epoch) + 1
        if number:
            if env.keeper is None:  # no election chose the number, and a slave hears of more
                number = max(number, epochs.number + 1)
            end = self.store.log.max_offset
            epochs.truncate(end)
            epochs.append(Epoch(number, end))
            self._begun = number

    def _ha_service(self) -> HAService:
        """Return the service that sends the log to replicas."""
        env, live = self.plan.env, self.plan.env.live
        config = live.current

        def rate() -> int | None:
            current = live.current
            return current.ha_max_bytes_per_second if current.ha_flow_control else None

        limits = HALimits(
            config.ha_batch_size, config.ha_heartbeat_ms / 1000, config.ha_silence_ms / 1000, rate
        )
        clock = env.system.clock
        admission = HAAdmission(live, env.guard, env.tls, env.system)
        loop = asyncio.get_running_loop()
        log, acks = self.store.log, self.store.replica_acks
        source = HASource(
            log=log,
            acks=acks,
            limits=limits,
            clock=clock,
            threads=env.system.threads,
            admit=admission,
            loop=loop,
        )
        peers = HAPeers(live, env.address, self._members, clock)
        return HAService(source, env.ha_port, peers.refusal)

    async def _members(self) -> set[str]:
        """Return the addresses of the brokers with the name of this one, or in its group."""
        keeper = self.plan.env.keeper
        in_group = keeper.status.addresses.values() if keeper is not None else ()
        return {*in_group, *await self.parts.registration.members()}

    async def _stop_ha(self, ha: HAService) -> None:
        """Let replicas copy the last messages, and disconnect them."""
        self.store.writer.push()
        await asyncio.to_thread(ha.stop)

    def _all_handlers(self) -> dict[int, Handler]:
        parts, replica = self.parts, self.replica
        status = None if replica is None else lambda: replica.follower.status
        replication = ReplicationProcessor(parts.state, parts.timer, self.ha, status)
        pass_on = None if self.relay is None else self.relay.commit_later
        own = handlers_of(parts, self.plan.conf, self._divergence, pass_on)
        handlers = combined([own, replication.handlers])
        if self.relay is None:
            return leased_handlers(handlers, self.store.gate)
        return self.relay.around(handlers)

    def _relay_to(self, replica: ReplicaService) -> Relay:
        """Return the relay of requests to the master of a slave."""
        env = self.plan.env

        def master() -> str | None:
            return replica.master.broker if replica.master is not None else None

        in_group, has_guard = env.keeper is not None, env.guard is not None
        return Relay(
            env.client_access, master, env.system.clock, in_group=in_group, has_guard=has_guard
        )

    def _divergence(self) -> str:
        """Return why the log of a slave is not that of its master; empty if it is."""
        return self.replica.follower.divergence if self.replica is not None else ""

    async def end(self) -> None:
        """Stop the services, wait for the requests in progress, save everything, close the store.

        Raises:
            OSError: A file cannot be saved.
            StoreError: The store cannot be closed cleanly.
        """
        await self._resources.aclose()

    def _log_missing_files(self) -> None:
        """Warn about missing files of the broker that nothing but a backup can restore."""
        for name in self.store.missing_config:
            path = self.plan.env.folder / CONFIG / name
            if not path.with_name(f"{name}.bak").exists():  # if it does, loading it is logged
                _log.warning(
                    "%s is missing, and there is no %s.bak: %s; to restore the previous state, "
                    "stop the broker and copy the file back from a backup",
                    path,
                    name,
                    CONFIG_FILES[name],
                )

    def _log_unsupported(self) -> None:
        """Warn about data of a Java broker in the folder that this broker does not use."""
        env, parts = self.plan.env, self.parts
        topics = parts.state.topics.content().topic_config_table.values()
        for remark in unused_data.remarks(env.system.files, env.folder, topics):
            _log.warning("found in %s: %s", env.folder, remark)

    # -- periodic tasks -----------------------------------------------------------------------

    def _start_tasks(self) -> None:
        parts, live = self.parts, self.plan.env.live
        rounds = [
            every(
                lambda: live.current.offsets_interval_ms / 1000,
                _step(parts.state.offsets.saver.save_changes, "consumer offsets cannot be saved"),
                _step(parts.orders.saver.save_changes, "ordered pops cannot be saved"),
            ),
            every(
                SWEEP_S,
                _step(parts.state.clients.expire, "silent clients cannot be removed"),
                _step(parts.locks.expire, "expired locks cannot be removed"),
                _step(parts.runtime.sample, "figures of the broker cannot be taken"),
                _step(
                    lambda: asyncio.to_thread(parts.state.traffic.sample),
                    "messages of topics and groups cannot be counted",
                ),
            ),
        ]
        if not self.is_slave:
            rounds += [
                every(
                    lambda: live.current.delay_interval_ms / 1000,
                    _step(
                        parts.schedule.saver.save_changes,
                        "offsets of delayed messages cannot be saved",
                    ),
                ),
                every(
                    lambda: live.current.transaction_check_interval_ms / 1000,
                    _step(parts.transactions.check, "half messages cannot be checked"),
                ),
            ]
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each) for each in rounds]

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _step(work: Callable[[], object], trouble: str) -> GuardedStep:
    return GuardedStep(work, f"{trouble}; will retry", _log)
