"""Fixtures: stores that are written once for all tests. A test that writes uses a copy."""

from __future__ import annotations

import pytest
from tests import time_limits

pytest.register_assert_rewrite("interop.commands", "interop.history")

from interop.peer import missing_tool  # noqa: E402
from interop.stores import (  # noqa: E402
    JAVA_CASES,
    OUR_CASES,
    JavaStore,
    OurStore,
    written_by_java,
    written_by_us,
)


def pytest_configure(config: pytest.Config) -> None:
    """Limit the time of coroutine tests."""
    if not config.pluginmanager.is_registered(time_limits):  # tests/conftest.py registers it, too
        config.pluginmanager.register(time_limits)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose tools are missing; some modules do not need Java."""
    tool = missing_tool()
    for item in items:
        module = item.getparent(pytest.Module)
        if tool and getattr(module and module.obj, "NEEDS_JAVA", True):
            item.add_marker(pytest.mark.skip(reason=f"{tool} is not on this machine"))


@pytest.fixture(scope="session", params=JAVA_CASES, ids=lambda case: case.name)
def by_java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaStore:
    """A store that Java has written."""
    case = request.param
    return written_by_java(case, tmp_path_factory.mktemp(case.name) / "store")


@pytest.fixture(scope="session", params=OUR_CASES, ids=lambda case: case.name)
def by_us(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OurStore:
    """A store that Firetrail has written."""
    case = request.param
    return written_by_us(case, tmp_path_factory.mktemp(case.name) / "store")
