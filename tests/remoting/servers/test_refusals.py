"""Log lines for rejected requests."""

import logging

import pytest
from tests.broker.brokers import talking
from tests.remoting.clocks import Clock

from firetrail.remoting.servers.refusals import LOG_INTERVAL_S, Refusals
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "firetrail")


def refuse(refusals: Refusals, request: int, code: int, times: int = 1) -> None:
    for _ in range(times):
        refusals.note(
            "10.0.0.1:5", RemotingCommand(request, {}), RemotingCommand(code, {}, remark="why")
        )


def test_one_rejection_of_a_kind_is_logged_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    refuse(refusals, RequestCode.SEND_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE, 38)
    first = "request 310 (SEND_MESSAGE_V2) of 10.0.0.1:5 is answered with code 14: why"
    assert caplog.messages == [first]
    clock.now += LOG_INTERVAL_S
    refuse(refusals, RequestCode.SEND_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE)
    more = " (37 more lines like this one were not logged)"
    assert caplog.messages == [first, f"{first}{more}"]


def test_the_log_level_depends_on_the_code_of_a_rejection(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(Clock())
    refuse(refusals, RequestCode.SEND_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)
    refuse(refusals, RequestCode.UPDATE_BROKER_CONFIG, ResponseCode.NO_PERMISSION)
    refuse(refusals, RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST)
    refuse(refusals, RequestCode.PULL_MESSAGE, ResponseCode.PULL_NOT_FOUND)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "DEBUG"]


async def test_a_server_logs_rejected_requests(caplog: pytest.LogCaptureFixture) -> None:
    async with talking() as talk:
        for _ in range(3):
            await talk.send("T1", b"", i="TIMER_DELAY_SEC\x01x\x02")
    (line,) = [m for m in caplog.messages if "answered" in m]
    assert "is answered with code 13: timer message illegal" in line
