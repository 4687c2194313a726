"""The requests that a slave refuses, with the codes of RocketMQ 5.x.

Whatever changes messages or tables has to be sent to the master; the slave gets it from there.
Commits of offsets, heartbeats and locks are accepted, as in RocketMQ: without a master, consumers
commit to a slave.
"""

from __future__ import annotations

from collections.abc import Mapping

from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler

BUSY = "[REJECTREQUEST]system busy: this broker is a slave; ask its master"
"""The remark of refused sends. The prefix is RocketMQ's."""
_NO_TRANSACTIONS = "Message store is slave mode, so end transaction is forbidden."
_NO_RECALL = "recall failed, broker service not available: this broker is a slave"
_NO_CHANGES = (
    "Can't modify topic or subscription group from slave broker, please execute it from master "
    "broker."
)
_NO_RESET = "Can not reset offset in slave broker; reset it on the master"

REFUSED: Mapping[RequestCode, tuple[ResponseCode, str]] = {
    RequestCode.SEND_MESSAGE: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.SEND_MESSAGE_V2: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.SEND_BATCH_MESSAGE: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.SEND_REPLY_MESSAGE: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.SEND_REPLY_MESSAGE_V2: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.CONSUMER_SEND_MSG_BACK: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.POP_MESSAGE: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.ACK_MESSAGE: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.BATCH_ACK_MESSAGE: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.RECALL_MESSAGE: (ResponseCode.SLAVE_NOT_AVAILABLE, _NO_RECALL),
    RequestCode.END_TRANSACTION: (ResponseCode.SLAVE_NOT_AVAILABLE, _NO_TRANSACTIONS),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (ResponseCode.SYSTEM_ERROR, _NO_TRANSACTIONS),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.DELETE_TOPIC_IN_BROKER: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.CLEAN_UNUSED_TOPIC: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (ResponseCode.SYSTEM_ERROR, _NO_CHANGES),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (ResponseCode.SYSTEM_ERROR, _NO_RESET),
    RequestCode.CLONE_GROUP_OFFSET: (ResponseCode.SYSTEM_ERROR, _NO_RESET),
}
"""Code and remark of the response, by request."""


def slave_handlers(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Return the handlers of a slave: those of a master, except for what a slave refuses."""
    return {code: _refuse if code in REFUSED else handlers[code] for code in handlers}


def _refuse(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(*REFUSED[RequestCode(request.code)])
