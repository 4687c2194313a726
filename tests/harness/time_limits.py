"""A time limit for coroutine tests and async fixtures, which pytest-asyncio does not have.

Tests wait for conditions. Without a limit, a condition that never comes true would hang the run
instead of failing one test. ``@pytest.mark.time_limit(seconds)`` changes the limit of a test.
"""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import pytest

LIMIT_S = 180.0
"""Default limit of a test, and of the setup and of the teardown of each async fixture.

The slowest tests without a limit of their own take a thirtieth of it on a quiet machine.
"""

P = ParamSpec("P")
T = TypeVar("T")


@asynccontextmanager
async def time_limit(what: str, seconds: float) -> AsyncIterator[None]:
    """Fail the test if the block takes longer. The cause shows where it was waiting."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():  # a timeout that the test itself has set
            raise
        message = f"{what} did not finish within {seconds:g} s; see @pytest.mark.time_limit"
        raise pytest.fail.Exception(message) from error


def limited(
    function: Callable[P, Awaitable[T]], what: str, seconds: float
) -> Callable[P, Awaitable[T]]:
    """Return a coroutine function that fails if it takes longer."""

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        async with time_limit(what, seconds):
            return await function(*args, **kwargs)

    return run


def limited_generator(
    function: Callable[P, AsyncIterator[T]], what: str, seconds: float
) -> Callable[P, AsyncIterator[T]]:
    """Return an async generator function whose every step fails if it takes longer.

    Setup and teardown of a fixture run in different tasks, so that one limit cannot span both.
    """

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        steps = aiter(function(*args, **kwargs))
        for stage in ("setup", "teardown"):
            try:
                async with time_limit(f"the {stage} of {what}", seconds):
                    value = await anext(steps)
            except StopAsyncIteration:
                return
            yield value

    return run


def limit_of(node: pytest.Item | pytest.Collector) -> float:
    """Return the limit of a test in seconds."""
    marker = node.get_closest_marker("time_limit")
    return float(marker.args[0]) if marker else LIMIT_S


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Limit the time of a coroutine test, or of every example of one with Hypothesis."""
    if not isinstance(item, pytest.Function):
        return (yield)
    test = getattr(item.obj, "hypothesis", None)
    target, name = (test, "inner_test") if test else (item, "obj")
    function = getattr(target, name)
    if not inspect.iscoroutinefunction(function):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, limited(function, item.name, limit_of(item)))
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Limit the time of the setup and the teardown of an async fixture."""
    function, seconds = fixturedef.func, limit_of(request.node)
    what = f"the fixture {fixturedef.argname}"
    with pytest.MonkeyPatch.context() as patch:
        if inspect.isasyncgenfunction(function):
            patch.setattr(fixturedef, "func", limited_generator(function, what, seconds))
        elif inspect.iscoroutinefunction(function):
            patch.setattr(fixturedef, "func", limited(function, what, seconds))
        return (yield)
