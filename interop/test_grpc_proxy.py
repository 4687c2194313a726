"""A released gRPC client at RocketMQ's own proxy 5.3.3, in front of Firetrail's broker.

The proxy runs in cluster mode: every call of the client becomes requests of the remoting protocol
to Firetrail's name server and broker. The proxy adds the commit log offset to each receipt, and
every acknowledgement contains it. The same tests run with RocketMQ's own broker in the process of
its proxy, and with Firetrail's proxy in front of RocketMQ's broker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from interop.conftest import JAVA_SETTINGS, JavaProxy
from interop.grpc_checks import check_order, check_put_off, check_received
from interop.grpc_servers import proxy
from interop.servers import PROXY_LINE, Servers
from interop.stock import (
    Event,
    all_delivered,
    bodies,
    client_environment,
    firetrail_up,
    lag,
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


GROUPS = {"GrpcOrderly": "GrpcFifo", "GrpcPush": "GrpcNormal", "GrpcSimple": "GrpcNormal"}


@pytest.fixture(scope="module", params=["firetrail", "java", "proxy of firetrail"])
def events(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What the client says, with Firetrail's broker or Java's behind the proxy.

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
            return conversation(namesrv, address, folder)
    if request.param == "java":
        java: JavaProxy = request.getfixturevalue("java_proxy")
        return conversation(java.namesrv, java.address, folder)
    servers = Servers(PROXY_LINE, folder)
    with firetrail_up(folder, CONF) as namesrv, servers.proxy(namesrv) as address:
        return conversation(namesrv, address, folder)


def conversation(namesrv: str, proxy: str, folder: Path) -> list[Event]:
    made = client_environment("grpc")
    asyncio.run(registered(namesrv))
    asyncio.run(prepared(namesrv))
    said = run_client([made / "venv" / "bin" / "python", CLIENT, proxy], folder)
    left = {group: asyncio.run(lag(namesrv, group, topic)) for group, topic in GROUPS.items()}
    assert left == dict.fromkeys(GROUPS, 0)
    return said


async def prepared(namesrv: str) -> None:
    """Topics with their types, and a group that consumes in order: gRPC clients make neither."""
    async with Admin(namesrv) as admin:
        for kind in ("Normal", "Fifo", "Transaction", "Delay"):
            message_type = MessageType(kind.upper())
            await admin.create_topic(f"Grpc{kind}", 4, message_type=message_type)
        for group in ("GrpcPush", "GrpcSimple", "GrpcHalves", "GrpcLater"):
            await admin.create_group(group)
        orderly = SubscriptionGroupConfig("GrpcOrderly", consume_message_orderly=True)
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


def test_transactions(events: list[Event], request: pytest.FixtureRequest) -> None:
    all_delivered(events, "halves", ["commit", "unknown"])
    asked = set(bodies(events, "got", "check"))
    if request.node.callspec.params["events"] == "firetrail":
        assert asked == {"unknown"}
    else:  # Java's broker stores ends of transactions every 3 s, and may ask about them before that
        assert {"unknown"} <= asked <= {"commit", "rollback", "unknown"}


def test_delivery_times(events: list[Event]) -> None:
    all_delivered(events, "delay", ["later"])
    (got,) = of(events, "got", "delay")
    assert got["time"] >= of(events, "sent", "delay")[1]["due"]
