"""Fixtures: stores that are written once for all tests. A test that writes uses a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.harness import time_limits, untested

pytest.register_assert_rewrite("interop.commands", "interop.grpc_checks", "interop.history")

from interop.peer import missing_tool  # noqa: E402
from interop.servers import PROXY_LINE, Servers  # noqa: E402
from interop.stores import (  # noqa: E402
    JAVA_CASES,
    OUR_CASES,
    JavaStore,
    OurStore,
    written_by_java,
    written_by_us,
)

LONG = frozenset(
    {
        "test_failover.py",
        "test_grpc_proxy.py",
        "test_java_slaves.py",
        "test_secured_brokers.py",
        "test_slave_brokers.py",
        "test_timers.py",
    }
)
"""Files whose tests take minutes."""


def pytest_configure(config: pytest.Config) -> None:
    """Limit the time of coroutine tests; say at the end which tests were skipped."""
    for plugin in (time_limits, untested):
        if not config.pluginmanager.is_registered(plugin):  # tests/conftest.py registers it, too
            config.pluginmanager.register(plugin)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose tools are missing; some modules do not need Java.

    Files that take minutes begin first, so that no worker is left with one of them at the end.
    """
    items.sort(key=lambda item: item.path.name not in LONG)
    tool = missing_tool()
    for item in items:
        module = item.getparent(pytest.Module)
        if tool and getattr(module and module.obj, "NEEDS_JAVA", True):
            item.add_marker(pytest.mark.skip(reason=f"{tool} is not on this machine"))


JAVA_SETTINGS = """\
recallMessageEnable=true
enableMixedMessageType=true
transactionTimeOut=5000
transactionCheckInterval=1000
"""
"""Settings of a Java broker behind a proxy. Java stores the ends of transactions up to 3 s late:
with a shorter timeout it would ask about them before that."""


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


class JavaProxy(NamedTuple):
    """The addresses of a gRPC proxy of RocketMQ, of its broker and of its name server."""

    address: str
    broker: str
    namesrv: str


@pytest.fixture(scope="session")
def java_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProxy]:
    """RocketMQ's gRPC proxy 5.3.3 in local mode, with its broker and a name server: an oracle.

    Recalls are allowed. Tests create topics and groups of their own.
    """
    java = Servers(PROXY_LINE, tmp_path_factory.mktemp("java-proxy"))
    with (
        java.name_server() as namesrv,
        java.local_proxy(namesrv, "broker-a", settings=JAVA_SETTINGS) as (address, broker),
    ):
        yield JavaProxy(address, broker, namesrv)
