"""The parts of a broker: created and recovered from the store in a fixed order."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from firetrail.access.guard import Guard
from firetrail.access.user_store import UserStore
from firetrail.broker.admin.assignment_processor import AssignmentProcessor
from firetrail.broker.admin.config_processor import ConfigProcessor
from firetrail.broker.admin.consumer_processor import ConsumerProcessor
from firetrail.broker.admin.inspection_processor import InspectionProcessor
from firetrail.broker.admin.runtime_info import RuntimeInfo
from firetrail.broker.admin.stats_processor import StatsProcessor
from firetrail.broker.admin.topic_group_processor import TopicGroupProcessor
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.broker_state import BrokerState
from firetrail.broker.filter.consumer_filters import ConsumerFilters
from firetrail.broker.filter.message_selector import MessageSelector
from firetrail.broker.pop.ack_processor import AckProcessor
from firetrail.broker.pop.ordered_pops import OrderedPops
from firetrail.broker.pop.pop_checkpoints import PopCheckpoints
from firetrail.broker.pop.pop_processor import PopProcessor
from firetrail.broker.pop.revive import ReviveService
from firetrail.broker.processors.consumer_checks import ConsumerChecks
from firetrail.broker.processors.pull_processor import Committer, PullProcessor
from firetrail.broker.processors.query_processor import QueryProcessor
from firetrail.broker.processors.recall_processor import RecallProcessor
from firetrail.broker.processors.reply_processor import ReplyProcessor
from firetrail.broker.processors.send_back_processor import SendBackProcessor
from firetrail.broker.processors.send_processor import SendProcessor
from firetrail.broker.processors.slave_refusals import slave_handlers
from firetrail.broker.services.clients import Clients
from firetrail.broker.services.long_polling import LongPolling
from firetrail.broker.services.rebalance_locks import RebalanceLockManager
from firetrail.broker.services.registration import RegistrationService
from firetrail.broker.services.schedule import ScheduleService
from firetrail.broker.services.traffic import Traffic
from firetrail.broker.state.deletions import Deletions
from firetrail.broker.state.excess_positions import (
    ExcessPosition,
    log_excess_positions,
    overshoot_in,
)
from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.offset_files import OffsetFiles
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.broker.state.topic_table import TopicTable
from firetrail.broker.stored_messages import pending_destinations
from firetrail.broker.takeover import java_timer
from firetrail.broker.timer.admission import TimerAdmission
from firetrail.broker.timer.timer_service import TimerService
from firetrail.broker.transactions.transactions import Transactions
from firetrail.broker.unsupported import unread_topics
from firetrail.format.names import DELAY_OFFSETS, GROUPS_JSON, TOPICS_JSON
from firetrail.format.values.bloom import BloomFilter
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.wire.codes import request_name
from firetrail.replication.group.lease_keeper import LeaseKeeper
from firetrail.replication.ha.ha_port import HAPort
from firetrail.replication.log.epochs import EpochFile
from firetrail.settings.config_file import CONSUMER_FILTERS, ORDERS, REQUEST_MODES, ConfigFile
from firetrail.settings.settings_table import Live
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import System
from firetrail.tls.server_tls import ServerTls


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings, files and addresses that the parts of a broker are created from."""

    folder: Path
    live: Live[BrokerConfig]
    system: System
    limits: ServerLimits
    address: str
    """``ip:port`` that clients connect to."""
    name_server: NameServer | None
    ha_port: HAPort
    """The port for replicas, bound in every role."""
    epochs: EpochFile
    """The epochs of the log: the master that wrote each part."""
    slave_mark: SlaveMark
    """Whether the broker was last a slave."""
    keeper: LeaseKeeper | None = None
    """Keeps the lease of the broker's group; None if the role of the broker is fixed."""
    client_access: Access | None = None
    """Credentials and TLS of the broker's own requests; None for those in the environment."""
    guard: Guard | None = None
    """Knows the users; None if there is no access control."""
    users: UserStore | None = None
    """The users; None without access control, or with the accounts of ACL 1.0."""
    tls: ServerTls | None = None
    """The TLS of the broker's ports; None for plaintext."""

    def file(self, name: str) -> ConfigFile:
        """Return a file of the ``config`` folder."""
        return ConfigFile(self.system, self.folder, name)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a broker, recovered but not started."""

    state: BrokerState
    schedule: ScheduleService
    transactions: Transactions
    checkpoints: PopCheckpoints
    orders: OrderedPops
    revive: ReviveService
    locks: RebalanceLockManager
    registration: RegistrationService
    assignment: AssignmentProcessor
    timer: TimerService
    runtime: RuntimeInfo
    deletions: Deletions


def build(
    env: Environment,
    store: BrokerStore,
    clients: Clients | None,
    *,
    state_lags: bool,
    topics_known_ms: int = 0,
) -> Parts:
    """Create the parts of a broker, and recover state that the store has and their files lack.

    The order matters:

    1. Topics. After an unclean stop, topics that have messages and were not saved come back. All
       other parts look topics up.
    2. Groups are loaded, and consumer offsets that are beyond the end of their queue are set back.
       The internal groups of transactions and pops have their offsets in the same table.
    3. Delay levels are loaded and set back in the same way.
    4. Transactions read the open half messages, starting at their offset.
    5. Checkpoints read the open pops, starting at their offset. After an unclean stop they advance
       the group offsets by pops that were not saved.
    6. After an unclean stop, groups that the open pops name and that were not saved come back.
    7. Pops that are waiting in the timer of a Java broker are added. This needs the checkpoints,
       because an acknowledgement in the timer may belong to one of them.
    8. The timer continues where it was saved.
    9. Ordered pops are loaded last, because each is valid only at the final offset of its group.

    Nothing here awaits: a request cannot arrive before all handlers exist.

    A slave only loads the files. They are copies of its master's, which may be newer than the log.
    Everything else follows when it becomes a master.

    Args:
        env: Settings, files and addresses.
        store: The open store.
        clients: The connected clients of the same broker in another role, None if there are none.
        state_lags: Whether the files may be older than the log: after an unclean stop, and at a
            promotion.
        topics_known_ms: The store time up to which the saved topics are complete. Default: 0, it is
            not known.
    """
    state, filters = _state(
        env, store, clients, state_lags=state_lags, topics_known_ms=topics_known_ms
    )
    delivery = _delivery(env, state, state_lags=state_lags)
    registration = RegistrationService(
        env.live,
        env.address,
        state.topics.offered,
        env.name_server,
        lambda: env.epochs.number,
        env.client_access,
    )
    now_ms, requests = env.system.clock.now_ms, env.file(REQUEST_MODES)
    owners = None if env.guard is None else env.guard.owners
    locks = RebalanceLockManager(
        env.system.clock.monotonic, env.live.current.name, state.topics, state.groups, owners
    )
    assignment = AssignmentProcessor(requests, state.clients, registration.routes.route)
    progress = (delivery.checkpoints, delivery.orders)
    settings = (assignment, locks) if filters is None else (assignment, locks, filters)
    return Parts(
        state=state,
        schedule=delivery.schedule,
        transactions=delivery.transactions,
        checkpoints=delivery.checkpoints,
        orders=delivery.orders,
        revive=ReviveService(store, state.topics, state.groups, delivery.checkpoints, now_ms),
        locks=locks,
        registration=registration,
        assignment=assignment,
        timer=delivery.timer,
        runtime=RuntimeInfo(store, env.limits, delivery.timer, delivery.schedule, now_ms),
        deletions=Deletions(state.topics, state.groups, state.offsets, progress, settings),
    )


class _Delivery(NamedTuple):
    """The parts that deliver messages later, or again."""

    schedule: ScheduleService
    transactions: Transactions
    checkpoints: PopCheckpoints
    orders: OrderedPops
    timer: TimerService


def _delivery(env: Environment, state: BrokerState, *, state_lags: bool) -> _Delivery:
    """Create the parts, and recover their state and the offsets that depend on them."""
    store, system, config = state.store, env.system, env.live.current
    now_ms, topics, offsets = system.clock.now_ms, state.topics, state.offsets
    delay_file = ConfigFile(system, env.folder, DELAY_OFFSETS, store.embedded.flush)
    schedule = ScheduleService(delay_file, store, store.config.delay_levels, now_ms)
    transactions = Transactions(state)
    now = system.clock.monotonic
    checkpoints = PopCheckpoints(store, topics, offsets, config.name, now_ms, now)
    timer = TimerService(system, env.folder, store, config, topics.revive)
    overshoot = overshoot_in(store, unread_topics(system.files, env.folder))
    is_slave = store.config.role is BrokerRole.SLAVE
    excess: list[ExcessPosition] = []
    if not is_slave:
        excess = offsets.set_back(overshoot) + schedule.set_back(overshoot)
        transactions.load()
        checkpoints.load(state_lags=state_lags)
        if state_lags:
            state.groups.recover(checkpoints.pops())
        java_timer.take_over(store, topics, offsets, checkpoints, system.files, env.folder)
        timer.load(partial(java_timer.note_read, offsets))
    else:
        timer.load_copy()
    orders = OrderedPops(env.file(ORDERS), topics, state.groups, offsets, now_ms)
    if not is_slave:
        log_excess_positions(excess + orders.set_back(overshoot))
    return _Delivery(schedule, transactions, checkpoints, orders, timer)


def _topics(
    env: Environment, store: BrokerStore, *, is_copy: bool, state_lags: bool, known_ms: int
) -> TopicTable:
    """Load the topics, and add those that have messages and were not saved."""
    levels = store.config.delay_levels.max_level
    now_ms = env.system.clock.now_ms
    topics = TopicTable(env.file(TOPICS_JSON), env.live, levels, now_ms, is_copy=is_copy)
    topics.has_light_queues = store.embedded.has_light_queues
    if not is_copy and (state_lags or TOPICS_JSON in store.missing_config):
        pending = pending_destinations(store, max(topics.version.timestamp, known_ms))
        topics.recover(store.queues.pairs(), store.queues.newest_time, pending)
    return topics


def _filters(env: Environment, store: BrokerStore) -> ConsumerFilters | None:
    """Load the filters of consumers, if their bitmaps are to be stored with the messages."""
    config = env.live.current
    if not config.filter_bitmaps or not store.config.extended_queues:
        return None
    filters = ConsumerFilters(
        env.file(CONSUMER_FILTERS),
        BloomFilter(config.bloom_error_percent, config.bloom_names),
        env.system.clock.now_ms,
        lambda: store.log.appender.last_store_time,
        clean=store.embedded.recovery.clean,
    )
    store.description.bitmap_of = filters.bitmap
    return filters


def _state(
    env: Environment,
    store: BrokerStore,
    clients: Clients | None,
    *,
    state_lags: bool,
    topics_known_ms: int,
) -> tuple[BrokerState, ConsumerFilters | None]:
    """Load the tables of topics, groups and offsets, and create what all parts share.

    The filters of consumers are None unless their bitmaps are stored.
    """
    live, system = env.live, env.system
    loop, now = asyncio.get_running_loop(), system.clock.monotonic
    is_slave = store.config.role is BrokerRole.SLAVE
    topics = _topics(env, store, is_copy=is_slave, state_lags=state_lags, known_ms=topics_known_ms)
    groups = GroupTable(env.file(GROUPS_JSON), live, system.clock.now_ms, is_copy=is_slave)
    if not is_slave:
        topics.fence = groups.fence = lambda: store.gate.fence.refusal
    light_queues = store.config.light_queues
    offset_files = OffsetFiles(system, env.folder, store.embedded.flush, light_queues=light_queues)
    offsets = OffsetTable(offset_files, store, topics, groups)
    filters = _filters(env, store) if not is_slave else None
    store.dispatch_in(loop)
    if clients is None:
        clients = Clients(topics, groups, now, live, env.guard)
    else:
        clients.serve(topics, groups)
    clients.evaluate(filters)
    state = BrokerState(
        live=live,
        store=store,
        system=system,
        address=env.address,
        topics=topics,
        groups=groups,
        offsets=offsets,
        clients=clients,
        selector=MessageSelector(store, live, filters),
        long_polling=LongPolling(store, loop),
        traffic=Traffic(store, now),
    )
    return state, filters


def handlers_of(
    parts: Parts,
    conf: Path | None,
    divergence: Callable[[], str] = lambda: "",
    pass_on: Committer | None = None,
) -> dict[int, Handler]:
    """Create the processors, and return the handlers of all parts by request code.

    Args:
        parts: The parts.
        conf: The file that changed settings are written to, None to keep them in memory.
        divergence: Returns why the log differs from the master's; empty if it does not. The
            default returns "".
        pass_on: Passes a commit in a pull on to the master. Default: None, for a master.
    """
    state = parts.state
    has_master = parts.registration.masters.are_named
    checks = ConsumerChecks(state, divergence)
    admission = TimerAdmission(parts.timer, state.live, state.system.clock.now_ms)
    send = SendProcessor(state, parts.transactions, admission, parts.registration.pending)
    answering = (
        send,
        ReplyProcessor(state, send),
        PullProcessor(state, has_master, checks, pass_on),
        PopProcessor(state, parts.checkpoints, parts.orders, checks),
        AckProcessor(state, parts.checkpoints, parts.orders),
        parts.assignment,
        SendBackProcessor(state),
        RecallProcessor(state, admission),
        QueryProcessor(state),
        state.offsets,
        state.clients,
        parts.locks,
        parts.transactions,
        StatsProcessor(state),
        parts.runtime,
        InspectionProcessor(state),
        TopicGroupProcessor(state, parts.schedule, parts.deletions, parts.registration.pending),
        ConfigProcessor(state, conf),
        ConsumerProcessor(state),
    )
    handlers = combined(part.handlers for part in answering)
    is_slave = state.store.config.role is BrokerRole.SLAVE
    return slave_handlers(handlers) if is_slave else handlers


def combined(parts: Iterable[Mapping[int, Handler]]) -> dict[int, Handler]:
    """Return the handlers of all ``parts``; raise ValueError if two handle the same request."""
    handlers: dict[int, Handler] = {}
    for part in parts:
        if taken := sorted(handlers.keys() & part.keys()):
            codes = ", ".join(request_name(code) for code in taken)
            raise ValueError(f"two processors handle request {codes}; remove one of the handlers")
        handlers.update(part)
    return handlers
