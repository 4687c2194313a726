"""Copies of the tables that a master keeps beside its commit log.

The class has the name of RocketMQ's. Topics, groups, offsets, delays and request modes are asked
for with the requests that Java slaves send. The tables save themselves as those of a master do, and
a promotion reads the same files.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from firetrail.broker.broker_parts import Parts
from firetrail.broker.state.offset_files import GroupOffsets, joined
from firetrail.broker.state.topic_table import QUEUES_MAX
from firetrail.broker.takeover.unused_data import topic_remarks
from firetrail.errors import FiretrailError, RequestError
from firetrail.format.light import is_light
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    DelayOffsets,
    LmqConsumerOffsets,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from firetrail.remoting.messages.pop.pop_bodies import RequestModes
from firetrail.remoting.messages.replica_bodies import EpochEntryCache, TimerCheckpoint
from firetrail.remoting.messages.replica_headers import EpochHeader
from firetrail.remoting.messages.typed_body import Body
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.log.epochs import Epoch, EpochFile
from firetrail.replication.replica.master_check import sign_remedy
from firetrail.system import Clock

REQUEST_S = 10.0
"""The time that the master may take to answer; a table can have megabytes."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SyncStatus:
    """The progress of a slave that copies the tables of its master."""

    copied_at_ms: int = 0
    """The time at which all tables were last equal to the master's, in ms since 1970; 0 if
    never."""
    topics_known_ms: int = 0
    """The store time of the newest record that had arrived when the topics were last copied: the
    copy has the topics of the records up to there, and those that delayed, timer and half messages
    among them wait for. 0 if never."""
    failures: dict[str, str] = field(default_factory=dict)
    """The reason why a table could not be copied in the last round, by the name of the table."""


def table_failures(failures: Mapping[str, str]) -> list[str]:
    """Return why tables could not be copied: for each reason, the tables and the reason.

    Args:
        failures: The reasons, by the name of the table.
    """
    names: dict[str, list[str]] = {}
    for name, why in failures.items():
        names.setdefault(why, []).append(name)
    return [f"{', '.join(tables)}: {why}" for why, tables in names.items()]


class _CopiedTable(NamedTuple):
    """A table of the master, the request for it, and the function that takes the answer."""

    name: str
    code: RequestCode
    kind: type[Body]
    adopt: Callable[[Body], None]


class SlaveSynchronize:
    """Copies the tables of a master, one round at a time."""

    def __init__(
        self, client: RemotingClient, parts: Parts, clock: Clock, epochs: EpochFile
    ) -> None:
        """Prepare to copy.

        Args:
            client: Sends the requests.
            parts: The tables to replace.
            clock: The time.
            epochs: The epochs of the log, which are copied as well.
        """
        self._client = client
        self._parts = parts
        self._clock = clock
        self._epochs = epochs
        self._answers: dict[str, bytes] = {}  # the last adopted answers, by table
        self._master = ""
        self._groups_seen: set[str] = set()  # keys of the offsets that the master has had
        self._remarks: set[str] = set()  # what was logged about its topics
        self._tables = (
            _CopiedTable(
                "topics", RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable, self._topics
            ),
            _CopiedTable(
                "offsets", RequestCode.GET_ALL_CONSUMER_OFFSET, LmqConsumerOffsets, self._offsets
            ),
            _CopiedTable("delays", RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsets, self._delays),
            _CopiedTable(
                "groups",
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                SubscriptionGroupTable,
                self._groups,
            ),
            _CopiedTable(
                "request modes", RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, RequestModes, self._modes
            ),
            _CopiedTable(
                "timer", RequestCode.GET_TIMER_CHECK_POINT, TimerCheckpoint, self._follow_timer
            ),
            _CopiedTable(
                "epochs", RequestCode.GET_BROKER_EPOCH_CACHE, EpochEntryCache, self._adopt_epochs
            ),
        )
        self.status = SyncStatus()
        self._copying = asyncio.Lock()

    async def copy(self, master: str) -> bool:
        """Copy all tables of the broker at ``master``; return whether all could be copied.

        A table that cannot be copied does not keep the others from being copied. Rounds follow each
        other, so that no answer is taken over after a newer one.
        """
        async with self._copying:
            return await self._copy(master)

    async def _copy(self, master: str) -> bool:
        if master != self._master:
            self._master = master
            self._answers.clear()
            self._groups_seen.clear()
            self.status.copied_at_ms = self.status.topics_known_ms = 0
        complete = True
        for table in self._tables:
            complete &= await self._copy_table(table, master)
        if complete:
            self.status.copied_at_ms = self._clock.now_ms()
        return complete

    async def _copy_table(self, table: _CopiedTable, master: str) -> bool:
        arrived_ms = self._parts.state.store.dispatch.dispatcher.last_store_time
        try:
            await self._adopt(table, master)
        except RequestError as error:
            if not _has_none(table, error):
                self._note_failure(table.name, f"{error}".rstrip(".") + sign_remedy(error))
                return False
        except (OSError, FiretrailError) as error:
            self._note_failure(table.name, str(error) or type(error).__name__)
            return False
        if table.kind is TopicConfigTable:
            self.status.topics_known_ms = arrived_ms
        if self.status.failures.pop(table.name, None) is not None:
            _log.info("%s of master %s are copied again", table.name, master)
        return True

    async def _adopt(self, table: _CopiedTable, master: str) -> None:
        fields = EpochHeader(replica=True).encode() if table.kind is EpochEntryCache else {}
        answer = await self._client.ask(master, RemotingCommand(table.code, fields), REQUEST_S)
        content = answer.content
        if self._answers.get(table.name) == content:
            return
        table.adopt(await asyncio.to_thread(table.kind.decode, content))
        self._answers[table.name] = content

    def _note_failure(self, name: str, error: str) -> None:
        if error not in self.status.failures.values():  # log it once, not for each table and retry
            _log.warning("%s of the master cannot be copied; will retry: %s", name, error)
        self.status.failures[name] = error

    # -- the tables ---------------------------------------------------------------------------

    def _topics(self, table: Body) -> None:
        assert isinstance(table, TopicConfigTable)
        topics = self._parts.state.topics
        gone = {*topics.names()}.difference(table.topic_config_table)
        topics.adopt(table)
        self._parts.deletions.forget_gone(topics=gone)
        for remark in topic_remarks(table.topic_config_table.values()):
            self._remark_once(f"{remark}: their messages are copied, but not served as there")

    def _groups(self, table: Body) -> None:
        assert isinstance(table, SubscriptionGroupTable)
        groups = self._parts.state.groups
        gone = {*groups.names()}.difference(table.subscription_group_table)
        groups.adopt(table)
        self._parts.deletions.forget_gone(groups=gone)

    def _offsets(self, table: Body) -> None:
        """Take over the offsets; forget those that the master has deleted.

        Offsets that the master never had stay: consumers committed them here while there was no
        master. An offset may be beyond the end of its queue, because the log can arrive later than
        the table; a promotion sets it back.
        """
        assert isinstance(table, LmqConsumerOffsets)
        offsets = possible(joined(table))
        gone = self._groups_seen.difference(offsets)
        self._parts.state.offsets.adopt(offsets, gone)
        self._groups_seen = set(offsets)
        has_light = any(is_light(key) for key in offsets)
        if has_light and not self._parts.state.store.config.light_queues:
            self._remark_once("light queues (%LMQ%) are not derived here: set enableLmq=true")

    def _delays(self, table: Body) -> None:
        assert isinstance(table, DelayOffsets)
        self._parts.schedule.adopt(table)

    def _modes(self, table: Body) -> None:
        assert isinstance(table, RequestModes)
        self._parts.assignment.adopt(table)

    def _follow_timer(self, table: Body) -> None:
        assert isinstance(table, TimerCheckpoint)
        self._parts.timer.follow(table.check)

    def _adopt_epochs(self, table: Body) -> None:
        """Take over the epochs, unless this broker has seen a newer one than the master."""
        assert isinstance(table, EpochEntryCache)
        epochs = [Epoch(entry.epoch, entry.start_offset) for entry in table.epoch_list]
        own = self._epochs.last
        if epochs and (own is None or epochs[-1].number >= own.number):
            self._epochs.save(epochs)

    def _remark_once(self, remark: str) -> None:
        if remark not in self._remarks:
            self._remarks.add(remark)
            _log.warning("master %s: %s", self._master, remark)


def possible(offsets: GroupOffsets) -> GroupOffsets:
    """Return the offsets without those that no queue can have."""
    return {
        key: {
            queue_id: offset
            for queue_id, offset in queues.items()
            if offset >= 0 and 0 <= queue_id < QUEUES_MAX
        }
        for key, queues in offsets.items()
    }


def _has_none(table: _CopiedTable, error: RequestError) -> bool:
    """Whether the master is of a version without this table.

    Request modes and timers are new in 5.0, and a timer can be switched off. Epochs are new, too,
    but only masters in controller mode have them.
    """
    if table.kind in (EpochEntryCache, TimerCheckpoint):
        return True
    return table.kind is RequestModes and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
