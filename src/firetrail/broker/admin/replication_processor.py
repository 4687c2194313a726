"""Replication as administrators and Java slaves see it: its status, and what slaves ask for."""

from collections.abc import Callable

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.timer.timer_service import TimerService
from firetrail.errors import RequestError
from firetrail.format.files.timer import CHECK_FIELDS
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.admin.admin_bodies import (
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
    TimerMetrics,
)
from firetrail.remoting.messages.admin.admin_headers import ExchangeHAInfoHeader
from firetrail.remoting.messages.replica_headers import LogRecordsHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.ha.ha_connection import HAConnection
from firetrail.replication.ha.ha_service import HAService
from firetrail.replication.replica.follower_status import FollowerStatus

RECORDS_BYTES = 1 << 20
"""Maximum size of the answer to a request for records, unless one record is longer."""


class ReplicationProcessor:
    """Handles GET_BROKER_HA_STATUS, EXCHANGE_BROKER_HA_INFO, GET_LOG_RECORDS and the timer."""

    def __init__(
        self,
        state: BrokerState,
        timer: TimerService,
        ha: HAService | None,
        follower: Callable[[], FollowerStatus] | None,
    ) -> None:
        """Create the processor.

        Args:
            state: The state of the broker.
            timer: The timer, whose progress slaves ask for.
            ha: Serves the replicas of a master; None on a slave.
            follower: Returns the status of a slave; None on a master.
        """
        self._store = state.store
        self._live = state.live
        self._now_ms = state.system.clock.now_ms
        self._address = state.address
        self._timer = timer
        self._ha = ha
        self._follower = follower
        self._begin = state.store.log.max_offset
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_BROKER_HA_STATUS: self._status,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self._exchange,
            RequestCode.GET_LOG_RECORDS: self._records,
            RequestCode.GET_TIMER_CHECK_POINT: self._timer_checkpoint,
            RequestCode.GET_TIMER_METRICS: self._timer_metrics,
        }

    def _status(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        connections = self._ha.connections if self._ha is not None else ()
        replicas = [each for each in connections if self._store.replica_acks.counts(each)]
        acked = [replica.session.acked for replica in replicas]
        end = self._store.log.max_offset  # after the reports, so that no replica is ahead of it
        info = HARuntimeInfo(
            end,
            self._ha is not None,
            self._store.replica_acks.in_sync(end),
            [self._replica(*replica, end) for replica in zip(replicas, acked, strict=True)],
            self._client(end),
        )
        return request.answer(body=info.encode())

    def _replica(self, replica: HAConnection, acked: int, end: int) -> HAConnectionRuntimeInfo:
        return HAConnectionRuntimeInfo(
            replica.address,
            acked,
            end - acked,
            acked >= 0 and self._store.replica_acks.is_in_sync(acked, end),
            replica.sent_per_second,
            replica.session.position,
        )

    def _client(self, end: int) -> HAClientRuntimeInfo:
        """Return the status of a slave; a master has an empty one, as in RocketMQ."""
        if self._follower is None:
            return HAClientRuntimeInfo()
        status = self._follower()
        master = status.master
        return HAClientRuntimeInfo(
            master_addr="" if master is None else master.ha or master.broker,
            transferred_byte_in_second=0,
            max_offset=end,
            last_read_timestamp=status.read_at_ms,
            last_write_timestamp=status.wrote_at_ms,
            master_flush_offset=max(status.master_max, 0),
            activated=status.error == "",
        )

    def _exchange(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the address of the HA port to a Java broker; do not accept another master from
        it."""
        if ExchangeHAInfoHeader.decode(request.fields).master_ha_address is not None:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "this broker follows the master that its settings or its name servers name, not "
                "one that a request names (enableSlaveActingMaster is not supported)",
            )
        if self._ha is None:
            return request.answer()
        told = ExchangeHAInfoHeader(self._live.current.ha_address, self._begin, self._address)
        return request.answer(fields=told.encode())

    def _records(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Send good records to a broker with the same log in which they are damaged."""
        header = LogRecordsHeader.decode(request.fields)
        records = self._store.log_patch.read(header.offset, min(header.size, RECORDS_BYTES))
        return request.answer(body=records)

    def _timer_checkpoint(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return the progress of the timer, up to which everything is on disk."""
        if not self._timer.is_enabled:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "timerWheelEnable is false")
        return request.answer(body=CHECK_FIELDS.pack(*self._timer.check))

    def _timer_metrics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=TimerMetrics().encode(standard=True))
