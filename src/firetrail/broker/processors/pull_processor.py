"""Pulls: messages for consumers, sent as slices of the log, at once or when some arrive."""

from __future__ import annotations

import logging
from collections.abc import Callable

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.filter.message_selector import MessageFilter
from firetrail.broker.processors.consumer_checks import ConsumerChecks
from firetrail.broker.processors.lease_check import require_lease
from firetrail.broker.services.long_polling import PULL_MAX_S, HeldRequest, WakeOutcome
from firetrail.errors import RequestError
from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler, failure
from firetrail.remoting.messages.bodies import MASTER_ID, MessageModel, SubscriptionGroupConfig
from firetrail.remoting.messages.headers import PullHeader, PullResponse
from firetrail.remoting.servers.fair_shares import holder_of
from firetrail.remoting.wire.codes import CommandFlag, PullFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.results import GetResult, GetStatus
from firetrail.store.settings.store_config import BrokerRole

_NOTHING_YET = ResponseCode.PULL_NOT_FOUND
_RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY
_FOUND = GetStatus.FOUND
_SUCCESS = ResponseCode.SUCCESS
_NO_MATCH = GetStatus.NO_MATCHED_MESSAGE
_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: _RETRY,
    GetStatus.NO_MATCHED_MESSAGE: _RETRY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
_AT_END = (*_EMPTY, GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_OVERFLOW_BADLY)
"""The statuses of a queue that ends at or before the offset."""
# Plain numbers, because the operators of an enum would cost measurable time in every pull.
_COMMIT, _SUSPEND = int(PullFlag.COMMIT), int(PullFlag.SUSPEND)
_SUBSCRIPTION = int(PullFlag.SUBSCRIPTION)
_RESPONSE = int(CommandFlag.RESPONSE)

Committer = Callable[[str, str, int, int], None]
"""A function that takes the group, topic, queue id and offset of a commit."""

_log = logging.getLogger(__name__)


class PullProcessor:
    """Handles PULL_MESSAGE and LITE_PULL_MESSAGE."""

    def __init__(
        self,
        state: BrokerState,
        has_master: Callable[[], bool],
        checks: ConsumerChecks,
        pass_on: Committer | None = None,
    ) -> None:
        """Initialize.

        Args:
            state: The state of the broker.
            has_master: Returns whether clients can find a master of this broker's name.
            checks: Decides who may pull.
            pass_on: Passes a commit in a pull on to the master. Default: None, for a master.
        """
        self._pass_on = pass_on
        self._is_slave = state.store.config.role is BrokerRole.SLAVE
        self._checks = checks
        self._has_master = has_master
        self._store = state.store
        self._selector = state.selector
        self._clients = state.clients
        self._offsets = state.offsets
        self._long_polling = state.long_polling
        self._live = state.live
        self._count_get = state.traffic.count_get
        self._limited_log = LimitedLog(_log, state.system.clock.monotonic)
        self.handlers: dict[int, Handler] = {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
        }

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        header = PullHeader.decode(request.fields)
        group = self._check(header)
        selection = self._selection(header)
        if header.sys_flag & _COMMIT:
            self._commit(connection, header)
        if (reset := self._reset_answer(request, header)) is not None:
            return reset
        offset = header.queue_offset
        result = self._get(header, offset, selection)
        code = self._code(result, offset)
        is_awaited = _awaits_repair(result, offset)
        if (
            code is _NOTHING_YET
            and (is_awaited or header.sys_flag & _SUSPEND)
            and self._long_polling.excess(connection, request) is None
        ):
            self._hold(connection, request, header, selection)
            return None
        if is_awaited:
            code = _RETRY
        self._check_end(header, offset, result)
        return self._answer(request, group, code, result)

    # -- checks -------------------------------------------------------------------------------

    def _check(self, header: PullHeader) -> SubscriptionGroupConfig:
        """Return the group of the consumer; raise RequestError if it may not pull."""
        return self._checks.require_readable(header.consumer_group, header.topic, header.queue_id)

    def _selection(self, header: PullHeader) -> MessageFilter:
        """Return the filter that the pull itself, or else the last heartbeat of its group, has."""
        if header.sys_flag & _SUBSCRIPTION:
            return self._selector.parsed(header.subscription or "", header.expression_type)
        group = self._clients.consumers.get(header.consumer_group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if group.message_model is MessageModel.BROADCASTING:
            self._checks.require_broadcast(group.name)
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if subscription.sub_version < header.sub_version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        found = self._selector.parsed(subscription.sub_string, subscription.expression_type)
        if found.properties is not None and self._selector.filters is not None:
            return found._replace(group=header.consumer_group)
        return found

    # -- reading ------------------------------------------------------------------------------

    def _commit(self, connection: Connection, header: PullHeader) -> None:
        """Commit the offset in a pull. The group gets its messages even if that is refused."""
        try:
            require_lease(self._store.gate)
            self._offsets.confirm(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
            if self._pass_on is not None:
                self._pass_on(
                    header.consumer_group, header.topic, header.queue_id, header.commit_offset
                )
        except RequestError as error:
            text = f"a pull of {connection.peer} is answered, but {error.remark}"
            self._limited_log.log(logging.WARNING, "refused commit", text)

    def _reset_answer(self, request: RemotingCommand, header: PullHeader) -> RemotingCommand | None:
        """Return the answer with the new offset if an administrator has reset the group.

        A pull from the new offset gets the same answer: the client may hold earlier messages that
        it has pulled and not consumed, and would commit the offset of the first of them.
        """
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.take_reset(header.consumer_group, topic, queue_id)
        if offset is None:
            return None
        store = self._store
        first, end = (
            store.queues.min_offset(topic, queue_id),
            store.queues.max_offset(topic, queue_id),
        )
        response = PullResponse(0, offset, first, end)
        return request.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", response.encode())

    def _get(self, header: PullHeader, offset: int, selection: MessageFilter) -> GetResult:
        count = max(header.max_msg_nums, 1)
        topic = header.topic
        result = self._selector.get(topic, header.queue_id, offset, count, selection)
        self._offsets.note_pull(header.consumer_group, topic, header.queue_id, result.next_offset)
        if result.count:
            self._count_get(topic, header.consumer_group, result.count, result.size)
        return result

    def _check_end(self, header: PullHeader, offset: int, result: GetResult) -> None:
        """Raise RequestError if the end of the queue was reached and is not known to be the end.

        A master whose lease is over may have a successor with more messages. Consumers that have
        read them would be set back. The lease is looked at after the queue, so that there was no
        successor when the queue was looked at.
        """
        if result.status in _AT_END and (refusal := self._store.gate.fence.refusal):
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"whether queue {header.queue_id} of {header.topic} has messages from offset "
                f"{offset} on is not known here: {refusal}",
            )

    # -- waiting ------------------------------------------------------------------------------

    def _hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullHeader,
        selection: MessageFilter,
    ) -> None:
        config = self._live.current
        milliseconds = (
            header.suspend_timeout_millis
            if config.long_polling and header.sys_flag & _SUSPEND
            else config.short_polling_ms
        )

        def wake(is_over: bool) -> WakeOutcome:
            try:
                if request.caller is not None:
                    self._clients.check_again(connection, request)
                group = self._check(header)
                answer = self._retry(request, header, group, held, selection, is_over)
            except Exception as error:
                answer = failure(request, error)
            if answer is None:
                return WakeOutcome.WAITS
            connection.reply(request, answer)
            return WakeOutcome.ANSWERED

        queues = [(header.topic, header.queue_id)]
        held = HeldRequest(connection, queues, header.queue_offset, wake)
        held.holder = holder_of(connection.host, request.caller)
        held.size = request.size
        seconds = min(max(milliseconds, 0) / 1000, PULL_MAX_S)
        self._long_polling.hold(held, seconds)

    def _retry(
        self,
        request: RemotingCommand,
        header: PullHeader,
        group: SubscriptionGroupConfig,
        held: HeldRequest,
        selection: MessageFilter,
        is_over: bool,
    ) -> RemotingCommand | None:
        """Return the answer of a held pull, None if it keeps waiting.

        The offset of the held pull moves past messages that do not match, so that the next retry
        does not read them again.
        """
        if (reset := self._reset_answer(request, header)) is not None:
            return reset
        while True:
            result = self._get(header, held.offset, selection)
            code = self._code(result, held.offset)
            if result.status is _NO_MATCH and result.next_offset > held.offset:
                held.offset = result.next_offset
                continue
            if code is _NOTHING_YET:
                if not is_over:
                    return None
                if held.offset > header.queue_offset or _awaits_repair(result, held.offset):
                    code = _RETRY
            self._check_end(header, held.offset, result)
            return self._answer(request, group, code, result)

    # -- answering ----------------------------------------------------------------------------

    def _code(self, result: GetResult, offset: int) -> ResponseCode:
        """Return the code of the answer.

        A master whose lease is over corrects no offset: its successor may have more messages.

        A slave sends consumers that have read everything back to the master. Without a master they
        wait here; RocketMQ would let them retry without a pause.
        """
        code = _code(result.status, offset)
        if code is _SUCCESS:
            return code
        if not self._is_slave:
            unsure = result.status in _AT_END and self._store.gate.fence.refusal
            return _NOTHING_YET if unsure else code
        if code is ResponseCode.PULL_OFFSET_MOVED and not self._store.config.corrects_offsets:
            is_ahead = result.status is not GetStatus.OFFSET_TOO_SMALL
            code = _NOTHING_YET if is_ahead else _RETRY
        return _RETRY if self._sends_back(result) else code

    def _sends_back(self, result: GetResult) -> bool:
        """Whether the consumer should continue at the master, which has the newest messages."""
        return self._is_slave and not result.suggest_slave and self._has_master()

    def _answer(
        self,
        request: RemotingCommand,
        group: SubscriptionGroupConfig,
        code: ResponseCode,
        result: GetResult,
    ) -> RemotingCommand:
        suggested = MASTER_ID
        if self._live.current.slave_read and not self._sends_back(result):
            slow = result.suggest_slave
            suggested = group.which_broker_when_consume_slowly if slow else group.broker_id
        return RemotingCommand(
            code,
            {
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(result.next_offset),
                "minOffset": str(result.min_offset),
                "maxOffset": str(result.max_offset),
            },
            result.buffers,
            result.status.value,
            request.opaque,
            _RESPONSE,
            serialize=request.serialize,
        )


def _awaits_repair(result: GetResult, offset: int) -> bool:
    """Whether the message at the offset is damaged and may be repaired soon.

    The pull waits for it even if it would not wait for messages. It must not seem to be at the end
    of the queue.
    """
    return result.status is GetStatus.OFFSET_OVERFLOW_ONE and offset < result.max_offset


def _code(status: GetStatus, offset: int) -> ResponseCode:
    if status is _FOUND:
        return _SUCCESS
    if status in _EMPTY:
        return ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
    return _CODES[status]
