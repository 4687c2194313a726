"""Coroutine tests and async fixtures that hang fail with a clear text."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.harness.pytest_runs import run_tests
from tests.harness.time_limits import LIMIT_S, limit_of, time_limit

HANGING = '''
"""Tests and fixtures that wait for something that never happens."""
import asyncio

import pytest
from hypothesis import given, strategies

pytestmark = pytest.mark.time_limit(0.05)

async def forever():
    await asyncio.Event().wait()

async def test_hanging():
    await forever()

class TestClass:
    async def test_hanging_method(self):
        await forever()

@given(strategies.booleans())
async def test_hanging_examples(value):
    await forever()

@pytest.fixture
async def setup():
    await forever()

async def test_with_setup(setup): pass

@pytest.fixture
async def begin():
    await forever()
    yield

async def test_with_begin(begin): pass

@pytest.fixture
async def end():
    yield 1
    await forever()

async def test_with_end(end):
    assert end == 1

@pytest.mark.time_limit(30)
async def test_with_a_higher_limit():
    await asyncio.sleep(0.1)

def test_without_a_loop(): pass

async def test_never_awaited():
    forever()
'''


def test_hanging_tests_and_fixtures_fail(tmp_path: Path) -> None:
    printed = run_tests(tmp_path, HANGING, "--tb=short", "-rA")
    assert "4 failed, 3 passed, 3 errors" in printed, printed
    for what in (
        "test_hanging",
        "test_hanging_method",
        "test_hanging_examples",
        "the fixture setup",
        "the setup of the fixture begin",
        "the teardown of the fixture end",
    ):
        assert f"{what} did not finish within 0.05 s" in printed
    assert "in forever\n    await asyncio.Event().wait()" in printed  # where it hangs
    assert "coroutine 'forever' was never awaited" in printed


async def test_a_timeout_of_the_test_itself_stays_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with time_limit("this", 30), asyncio.timeout(0):
            await asyncio.sleep(30)


async def test_the_failure_names_the_test_and_the_limit() -> None:
    text = "^this did not finish within 0.01 s; see @pytest.mark.time_limit$"
    with pytest.raises(pytest.fail.Exception, match=text):
        async with time_limit("this", 0.01):
            await asyncio.sleep(30)


@pytest.fixture
async def number() -> AsyncIterator[int]:
    yield 7


async def test_fixtures_have_their_value(number: int) -> None:
    assert number == 7


@pytest.mark.time_limit(300)
async def test_a_marker_sets_the_limit(request: pytest.FixtureRequest) -> None:
    assert limit_of(request.node) == 300


async def test_the_default_limit_is_generous(request: pytest.FixtureRequest) -> None:
    assert limit_of(request.node) == LIMIT_S == 180
