"""The codes of answers: what went wrong, in the terms of the gRPC schema.

Handlers raise :class:`ProxyError`, or let errors of brokers pass; :func:`status_of` turns each into
the ``status`` of a response. RocketMQ's proxy in front of a cluster answers the same codes.
"""

from firetrail.errors import FiretrailError, ProxyError, RequestError
from firetrail.proxy.schema.messages import Code, Status
from firetrail.remoting.connections.unexpected_errors import log_unexpected
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

__all__ = ("OK", "Code", "ProxyError", "checked", "code_of", "error_of", "status_of")

OK = Status(code=Code.OK, message=Code.OK.name)
"""The status of success. Responses copy it."""

_CODES: dict[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}


def code_of(response_code: int) -> Code:
    """Return the code for the response code of a broker."""
    return _CODES.get(response_code, Code.INTERNAL_SERVER_ERROR)


def checked(response: RemotingCommand) -> RemotingCommand:
    """Return the response of a broker.

    Raises:
        ProxyError: The broker refused the request.
    """
    if response.code:
        raise ProxyError(code_of(response.code), response.remark or "")
    return response


def error_of(error: Exception) -> ProxyError:
    """Return the error for the client; unexpected errors are also logged."""
    if isinstance(error, ProxyError):
        return error
    if isinstance(error, RequestError):
        return ProxyError(code_of(error.code), error.remark)
    if isinstance(error, TimeoutError):
        return ProxyError(Code.PROXY_TIMEOUT, str(error) or "the broker did not answer in time")
    if not isinstance(error, FiretrailError):
        log_unexpected("a call failed with an unexpected error", error)
    return ProxyError(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def status_of(error: Exception) -> Status:
    """Return the status of the response to a call that failed."""
    translated = error_of(error)
    return Status(code=translated.code, message=translated.text)
