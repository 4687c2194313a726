"""The code that answers a client, for each failure."""

import logging

import pytest

from firetrail.errors import (
    NoAnswerError,
    NoRouteYetError,
    NotReachedError,
    ProxyError,
    RequestError,
    StoreError,
)
from firetrail.proxy.calls.status_codes import Code, checked, code_of, error_of, status_of
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

FAILURES = [
    (RequestError(ResponseCode.SYSTEM_BUSY, "r"), Code.TOO_MANY_REQUESTS, "r"),
    (RequestError(ResponseCode.FLOW_CONTROL, "r"), Code.TOO_MANY_REQUESTS, "r"),
    (RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "r"), Code.NOT_IMPLEMENTED, "r"),
    (
        RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "r"),
        Code.CONSUMER_GROUP_NOT_FOUND,
        "r",
    ),
    (RequestError(ResponseCode.TOPIC_NOT_EXIST, "r"), Code.TOPIC_NOT_FOUND, "r"),
    (NoRouteYetError(ResponseCode.TOPIC_NOT_EXIST, "r"), Code.TOPIC_NOT_FOUND, "r"),
    (RequestError(ResponseCode.NO_PERMISSION, "r"), Code.FORBIDDEN, "r"),
    (
        RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "r"),
        Code.ILLEGAL_FILTER_EXPRESSION,
        "r",
    ),
    (RequestError(ResponseCode.SYSTEM_ERROR, "r"), Code.INTERNAL_SERVER_ERROR, "r"),
    (RequestError(4711, "r"), Code.INTERNAL_SERVER_ERROR, "r"),
    (NoAnswerError("b: no answer"), Code.PROXY_TIMEOUT, "b: no answer"),
    (TimeoutError(), Code.PROXY_TIMEOUT, "the broker did not answer in time"),
    (NotReachedError("b"), Code.INTERNAL_SERVER_ERROR, "NotReachedError: b"),
    (StoreError("no room"), Code.INTERNAL_SERVER_ERROR, "StoreError: no room"),
    (ProxyError(Code.ILLEGAL_TOPIC, "blank"), Code.ILLEGAL_TOPIC, "blank"),
]


@pytest.mark.parametrize(("error", "code", "text"), FAILURES)
def test_failures_have_codes(
    error: Exception, code: Code, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    status = status_of(error)
    assert (Code(status.code), status.message) == (code, text)
    assert not caplog.records


def test_unexpected_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        told = error_of(KeyError("x"))
    assert (told.code, told.text) == (Code.INTERNAL_SERVER_ERROR, "KeyError: 'x'")
    assert "a call failed with an unexpected error" in caplog.text


def test_a_response_of_a_broker_is_checked() -> None:
    success = RemotingCommand(ResponseCode.SUCCESS)
    assert checked(success) is success
    assert code_of(ResponseCode.SUCCESS) is Code.OK
    with pytest.raises(ProxyError, match="busy") as caught:
        checked(RemotingCommand(ResponseCode.SYSTEM_BUSY, remark="busy"))
    assert caught.value.code == Code.TOO_MANY_REQUESTS
