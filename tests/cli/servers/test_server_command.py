"""The common behaviour of the commands that run servers."""

import sys
from collections.abc import Iterator

import pytest

from firetrail.cli.servers import server_command


@pytest.fixture
def switch_interval() -> Iterator[None]:
    """Restore the interval after the test."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switch_interval")
def test_the_event_loop_gets_the_interpreter_lock_soon() -> None:
    async def serve() -> float:
        return sys.getswitchinterval()

    assert server_command.run(serve()) == pytest.approx(server_command.SWITCH_S)
