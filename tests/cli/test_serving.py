"""The common behaviour of the commands that run servers."""

import sys
from collections.abc import Iterator

import pytest

from firetrail.cli import serving


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

    assert serving.run(serve()) == pytest.approx(serving.SWITCH_S)
