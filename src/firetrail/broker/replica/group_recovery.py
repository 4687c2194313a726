"""The decision of an operator about a group whose state in etcd its members refuse.

The command ``firetrail replica recover-group`` has asked all members, and sends this request to the
one whose log is to be the group's. That member replaces the in-sync set in etcd by a set with
itself as the only member. The new version continues what all members have seen, so they accept it,
and those whose logs differ may truncate them; a copy of the removed records is kept.
"""

import asyncio
import logging
from typing import Protocol

from firetrail.errors import ElectionError, NotReachedError, RequestError
from firetrail.format.values.integers import parse_whole
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.replica_headers import RecoverGroupHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.group.group_memory import GroupMemory
from firetrail.replication.group.group_view import InSyncSet
from firetrail.replication.group.lease_keeper import LeaseKeeper
from firetrail.replication.group.lineage import LogDecision
from firetrail.store.broker_store import BrokerStore

_log = logging.getLogger(__name__)


class RecoverableBroker(Protocol):
    """The broker of a member."""

    @property
    def address(self) -> str:
        """``ip:port`` of the broker."""

    @property
    def broker_store(self) -> BrokerStore:
        """The store; closed during a change of role."""


class GroupRecovery:
    """Handles the request by which an operator decides which log is the group's.

    Attributes:
        handlers: The handler, which serves in every role.
        keeper: Keeps the lease of the group; None if the role of the broker is fixed.
    """

    def __init__(self, broker: RecoverableBroker) -> None:
        self._broker = broker
        self.keeper: LeaseKeeper | None = None
        self.handlers: dict[int, Handler] = {RequestCode.RECOVER_GROUP: self._recover}

    async def _recover(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = RecoverGroupHeader.decode(request.fields)
        broker, keeper = self._broker, self.keeper
        if keeper is None:
            raise _refused(f"{broker.address} is not a member of a group with automatic failover")
        status = keeper.status
        if status.refusal is None and status.in_sync and not status.older_log:
            raise _refused(
                f"{broker.address} accepts the state of the group in etcd, so there is nothing to "
                "recover"
            )
        end = broker.broker_store.log.max_offset
        decided = decided_set(keeper.number, status.memory, end, header)
        _log.warning(
            "%s has decided that the log of this member, up to %d, is the group's; version %d",
            connection.peer,
            end,
            decided.lineage.version,
        )
        try:
            obstacle = await asyncio.to_thread(keeper.recover, decided)
        except (NotReachedError, ElectionError) as error:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{broker.address}: {error}") from None
        if obstacle:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{broker.address}: {obstacle}")
        return request.answer()


def decided_set(
    member: int, memory: GroupMemory, log_end: int, header: RecoverGroupHeader
) -> InSyncSet:
    """Return the in-sync set that an operator has decided on.

    Args:
        member: The member whose log is the group's.
        memory: The state that it has seen.
        log_end: The end of its log.
        header: The state that the other members have seen.

    Raises:
        RequestError: The header names no members.
    """
    try:
        asked = {parse_whole(each, 1) for each in header.asked.split()}
    except ValueError:
        raise _refused(f"{header.asked!r} are not numbers of members") from None
    decision = LogDecision(
        frozenset(header.others.split()),
        frozenset(asked),
        header.version,
        header.epoch,
    )
    past = memory.lineage.with_decision(decision)
    members, offset = frozenset({member}), min(memory.offset, log_end)
    return InSyncSet(members, offset, 0, past.continued(members, offset))


def _refused(reason: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, reason)
