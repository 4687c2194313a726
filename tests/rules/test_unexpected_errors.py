"""Unexpected errors of all servers are logged with a traceback, and a flood of them is limited."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import firetrail
from firetrail.errors import RequestError
from firetrail.pace.limited_log import BURST
from firetrail.proxy.calls.status_codes import status_of
from firetrail.remoting.connections.handlers import failure
from firetrail.remoting.wire.command import RemotingCommand

PACKAGE = Path(firetrail.__file__).parent


class Defect(Exception):
    """An error of which no other test exhausts the limit."""


@pytest.mark.parametrize(
    "fail",
    [status_of, lambda error: failure(RemotingCommand(310), error)],
    ids=["gRPC", "remoting"],
)
def test_a_flood_of_unexpected_errors_is_limited(
    fail: Callable[[Exception], object], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10 * BURST):
        fail(Defect("x"))
        fail(RequestError(1, "expected"))
    lines = [record for record in caplog.records if "unexpected error" in record.getMessage()]
    assert 0 < len(lines) <= BURST + 1
    assert all(line.exc_info for line in lines)


@pytest.mark.parametrize("layer", ["proxy", "remoting"])
def test_no_other_module_of_servers_logs_a_traceback(layer: str) -> None:
    """What a peer causes must not fill the disk."""
    for path in PACKAGE.joinpath(layer).rglob("*.py"):
        assert not re.search(r"exc_info=|log\.exception\(", path.read_text()), path
