"""Released gRPC clients at RocketMQ's own proxy 5.3.3, in front of Firetrail's broker.

The proxy runs in cluster mode: every call of a client becomes requests of the remoting protocol
to Firetrail's name server and broker. The proxy adds the commit log offset to each receipt, and
every acknowledgement contains it. The same tests run with RocketMQ's own broker in the process of
its proxy, and with Firetrail's proxy in front of RocketMQ's broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.conftest import JAVA_SETTINGS, JavaProxy
from interop.grpc_checks import Check, check_name, check_order, check_put_off, check_received
from interop.grpc_servers import proxy
from interop.servers import PROXY_LINE, Servers
from interop.stock import (
    Event,
    all_delivered,
    bodies,
    client_environment,
    firetrail_up,
    lag,
    needs,
    of,
    registered,
    run_client,
)

from firetrail.client import Admin, MessageType
from firetrail.remoting.bodies import SubscriptionGroupConfig

CLIENT = Path(__file__).parent / "grpc" / "client.py"
CONF = """\
listenPort=0
transactionTimeOut=1000
transactionCheckInterval=1000
transactionCheckMax=1000
"""


ORDERLY = "Orderly"
READ = {ORDERLY: "Fifo", "Push": "Normal", "Simple": "Normal"}
"""Groups and the topics that they have read at the end, without the prefix of their names."""


class Cluster(NamedTuple):
    """The addresses of a name server and of a proxy."""

    namesrv: str
    proxy: str


@pytest.fixture(scope="module", params=["firetrail", "java", "proxy of firetrail"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Firetrail's broker or Java's behind the proxy.

    The proxy of Firetrail runs in front of Java's name server and broker.
    """
    folder = tmp_path_factory.mktemp("proxy")
    if request.param == "proxy of firetrail":
        java_side = Servers("v5", folder)
        with (
            java_side.name_server() as namesrv,
            java_side.broker(namesrv, "broker-a", settings=JAVA_SETTINGS),
            proxy(namesrv) as address,
        ):
            yield Cluster(namesrv, address)
    elif request.param == "java":
        java: JavaProxy = request.getfixturevalue("java_proxy")
        yield Cluster(java.namesrv, java.address)
    else:
        servers = Servers(PROXY_LINE, folder)
        with firetrail_up(folder, CONF) as namesrv, servers.proxy(namesrv) as address:
            yield Cluster(namesrv, address)


@pytest.fixture(scope="module")
def events(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What the Python client says."""
    client = client_environment("grpc") / "venv" / "bin" / "python"
    return conversation(cluster, [client, CLIENT, cluster.proxy], tmp_path_factory.mktemp("grpc"))


@pytest.fixture(scope="module")
def go_events(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What the Go client says."""
    needs("go")
    client = str(client_environment("go-grpc") / "client")
    command = [client, cluster.proxy, "tls", "messages", "Go"]
    return conversation(cluster, command, tmp_path_factory.mktemp("go"), "Go")


def conversation(
    cluster: Cluster, command: Sequence[str | Path], folder: Path, prefix: str = "Grpc"
) -> list[Event]:
    asyncio.run(registered(cluster.namesrv))
    asyncio.run(prepared(cluster.namesrv, prefix))
    said = run_client(command, folder)
    for group, topic in READ.items():
        assert not asyncio.run(lag(cluster.namesrv, prefix + group, prefix + topic)), group
    return said


async def prepared(namesrv: str, prefix: str) -> None:
    """Topics with their types, and a group that consumes in order: gRPC clients make neither."""
    async with Admin(namesrv) as admin:
        for kind in ("Normal", "Fifo", "Transaction", "Delay"):
            message_type = MessageType(kind.upper())
            await admin.create_topic(prefix + kind, 4, message_type=message_type)
        for group in ("Push", "Simple", "Halves", "Later"):
            await admin.create_group(prefix + group)
        orderly = SubscriptionGroupConfig(prefix + ORDERLY, consume_message_orderly=True)
        await admin.create_group(orderly)


def test_everything_sent_is_received(events: list[Event]) -> None:
    check_received(events)
    assert {event["words"] for event in of(events, "got", "push")} == {9}


def test_order(events: list[Event]) -> None:
    check_order(events)


def test_a_failure_in_order_comes_again(events: list[Event]) -> None:
    got = [event for event in of(events, "got", "fifo") if event["body"] == "again"]
    assert [event["group"] for event in got] == ["order-0"] * 2


def test_a_message_that_was_put_off_comes_again(events: list[Event]) -> None:
    check_put_off(events)


def transactions(events: list[Event], request: pytest.FixtureRequest) -> None:
    all_delivered(events, "halves", ["commit", "unknown"])
    asked = set(bodies(events, "got", "check"))
    if request.node.callspec.params["cluster"] == "firetrail":
        assert asked == {"unknown"}
    else:  # Java's broker stores ends of transactions every 3 s, and may ask about them before that
        assert {"unknown"} <= asked <= {"commit", "rollback", "unknown"}


def test_transactions(events: list[Event], request: pytest.FixtureRequest) -> None:
    transactions(events, request)


@pytest.mark.parametrize("check", [check_received, check_order, check_put_off], ids=check_name)
def test_the_go_client(go_events: list[Event], check: Check) -> None:
    check(go_events)


def test_transactions_of_the_go_client(
    go_events: list[Event], request: pytest.FixtureRequest
) -> None:
    transactions(go_events, request)


def test_delivery_times(events: list[Event]) -> None:
    all_delivered(events, "delay", ["later"])
    (got,) = of(events, "got", "delay")
    assert got["time"] >= of(events, "sent", "delay")[1]["due"]
