"""Requests of features that Firetrail lacks."""

import re
from pathlib import Path
from typing import cast

import pytest

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import answer_to
from firetrail.remoting.messages.missing_features import FEATURES, refusal_of
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"


@pytest.mark.parametrize(
    ("code", "feature"),
    [
        (354, "queues, settings or pops in RocksDB"),
        (513, "static topics"),
        (1001, "controllers"),
        (2001, "flow control for cold data"),
        (200071, "lite topics"),
    ],
)
def test_the_answer_names_the_feature(code: int, feature: str) -> None:
    connection = cast(Connection, None)
    answer = answer_to({}, connection, RemotingCommand(code))
    assert isinstance(answer, RemotingCommand)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {code} not supported: Firetrail does not have {feature}"


def test_other_requests_are_refused_as_in_rocketmq() -> None:
    assert refusal_of(12345) == " request type 12345 not supported"


def test_features_have_only_codes_that_the_page_lists_as_unknown() -> None:
    other = PAGE.read_text("utf-8").partition("\n### Other codes\n")[2]
    codes = {int(code) for code in re.findall(r"(\d+)\s+`[A-Z_]+`", other)}
    assert set(FEATURES) <= codes
    assert not set(FEATURES) & set(RequestCode)
