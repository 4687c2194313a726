"""Released gRPC clients at RocketMQ's own proxy 5.3.3, in front of Firetrail's broker.

The proxy runs in cluster mode: every call of a client becomes requests of the remoting protocol
to Firetrail's name server and broker. The proxy adds the commit log offset to each receipt, and
every acknowledgement contains it. The same tests run with RocketMQ's own broker in the process of
its proxy, and with Firetrail's proxy in front of RocketMQ's broker.

All programs talk to a cluster at the same time, with topics and groups of their own. When those
with the features are ready, Firetrail's part of the cluster is killed and started again.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from interop.conftest import JAVA_SETTINGS, JavaProxy
from interop.grpc_answers import Service
from interop.grpc_checks import (
    FEATURES,
    Check,
    check_name,
    check_order,
    check_put_off,
    check_received,
    check_restart,
)
from interop.grpc_servers import (
    KINDS_5_3,
    Restartable,
    prepared,
    proxy,
    rest,
    serving,
    talking,
    until,
    until_end,
)
from interop.servers import PROXY_LINE, Servers
from interop.stock import (
    WAIT_S,
    Event,
    all_delivered,
    bodies,
    client_environment,
    lag,
    needs,
    of,
    registered,
)
from interop.test_grpc_java import program as java_program
from tests.ports import free_port

from firetrail.proxy.schema.messages import QueryRouteRequest, Resource

PROGRAMS = Path(__file__).parent / "grpc"
LATE_CHECKS = "transactionTimeOut=5000\n"
"""Several programs start at once, so it may take some time until a transaction ends."""
READ = {"Orderly": "Fifo", "Push": "Normal", "Simple": "Normal"}
"""Groups and the topics that they have read at the end, without the prefix of their names."""
FIRETRAIL, JAVA, OUR_PROXY = "firetrail", "java", "proxy of firetrail"


class Cluster(NamedTuple):
    """The addresses of a name server and of a proxy."""

    namesrv: str
    proxy: str
    restart: Callable[[], None] | None = None
    """Kill Firetrail's part of the cluster, and start it again."""


class Talk(NamedTuple):
    """A program with a gRPC client: a tool that it needs, its command, and its arguments.

    The address of the proxy comes before the arguments, and the prefix of all names after them.
    """

    tool: str
    command: Callable[[Path], Sequence[str | Path]]
    arguments: Sequence[str]


def python_program(name: str) -> Callable[[Path], Sequence[str | Path]]:
    return lambda folder: [client_environment("grpc") / "venv/bin/python", PROGRAMS / name]


def go_program(folder: Path) -> Sequence[str | Path]:
    return [client_environment("go-grpc") / "client"]


def node_program(folder: Path) -> Sequence[str | Path]:
    return ["node", client_environment("node-grpc") / "client.js"]


MESSENGERS = {
    "Python": Talk("java", python_program("client.py"), []),
    "Go": Talk("go", go_program, ["tls", "messages"]),
    "Java": Talk("java", java_program, ["tls", "messages"]),
    "Node": Talk("npm", node_program, ["plain", "messages"]),
}
SHOWMEN = {
    "PythonFeatures": Talk("java", python_program("features.py"), ["features"]),
    "GoFeatures": Talk("go", go_program, ["plain", "features"]),
}
TALKS = MESSENGERS | SHOWMEN
"""Programs by the prefix of their topics and groups."""


@pytest.fixture(scope="module", params=[FIRETRAIL, JAVA, OUR_PROXY])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Firetrail's broker or Java's behind the proxy.

    The proxy of Firetrail runs in front of Java's name server and broker.
    """
    folder = tmp_path_factory.mktemp("proxy")
    ports = free_port(), free_port(), free_port()
    if request.param == OUR_PROXY:
        java_side = Servers("v5", folder)
        with (
            java_side.name_server() as namesrv,
            java_side.broker(namesrv, "broker-a", signal.SIGKILL, settings=JAVA_SETTINGS),
            (ours := Restartable(lambda: proxy(namesrv, ports[0]))) as address,
        ):
            yield Cluster(namesrv, address, ours.restart)
    elif request.param == JAVA:
        java: JavaProxy = request.getfixturevalue("java_proxy")
        yield Cluster(java.namesrv, java.address)
    else:
        servers = Servers(PROXY_LINE, folder)
        server = Restartable(lambda: serving(folder, *ports, settings=LATE_CHECKS))
        with server as addresses, servers.proxy(addresses["name_server"]) as address:
            yield Cluster(addresses["name_server"], address, server.restart)


class Conversations:
    """The conversations of all programs with a cluster, except those whose tools are missing."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        asyncio.run(registered(cluster.namesrv))
        names = [name for name, talk in TALKS.items() if shutil.which(talk.tool)]
        for name in names:
            asyncio.run(prepared(cluster.namesrv, name, KINDS_5_3))
        warm_up(cluster.proxy, [name + kind for name in names for kind in KINDS_5_3])
        self._said: list[Mapping[str, Future[list[Event]]]] = []
        self.unread: dict[str, int] = {}
        """How many messages the groups of the messengers have not acknowledged."""
        with ExitStack() as stack, ThreadPoolExecutor(len(names)) as pool:
            clients = {}
            for name in names:
                home = folder / name
                home.mkdir()
                talk = TALKS[name]
                command = [*talk.command(home), cluster.proxy, *talk.arguments, name]
                clients[name] = stack.enter_context(talking(command, home))
            before = {
                name: pool.submit(until, client, "ready")
                if name in SHOWMEN
                else pool.submit(until_end, client)
                for name, client in clients.items()
            }
            wait(before.values())
            for name in MESSENGERS.keys() & clients.keys():
                for group, topic in READ.items():
                    count = asyncio.run(unread(cluster.namesrv, name + group, name + topic))
                    self.unread[name + group] = count
            if cluster.restart:
                cluster.restart()
            ready = [name for name in SHOWMEN if name in names and not before[name].exception()]
            after = {name: pool.submit(rest, clients[name]) for name in ready}
            self._said = [before, after]

    def events(self, name: str) -> list[Event]:
        """Return what a program has said; raise if it has failed."""
        needs(TALKS[name].tool)
        return [event for part in self._said if name in part for event in part[name].result()]


def warm_up(address: str, topics: Sequence[str]) -> None:
    """Ask for all routes: a proxy that has just been started can be too slow for some clients."""
    with grpc.insecure_channel(address) as channel:
        for topic in topics:
            request = QueryRouteRequest(topic=Resource(name=topic))
            assert Service(channel).answer("QueryRoute", request) == "OK", topic


async def unread(namesrv: str, group: str, topic: str) -> int:
    """Return the lag of a group; brokers of Java store acknowledgements later."""
    try:
        async with asyncio.timeout(WAIT_S):
            while await lag(namesrv, group, topic):
                await asyncio.sleep(0.1)
    except TimeoutError:
        pass
    return await lag(namesrv, group, topic)


@pytest.fixture(scope="module")
def said(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Conversations:
    return Conversations(cluster, tmp_path_factory.mktemp("talks"))


@pytest.mark.parametrize("check", [check_received, check_order, check_put_off], ids=check_name)
@pytest.mark.parametrize("client", MESSENGERS)
def test_messages(said: Conversations, client: str, check: Check) -> None:
    check(said.events(client))


@pytest.mark.parametrize("client", MESSENGERS)
def test_all_messages_are_acknowledged(said: Conversations, client: str) -> None:
    said.events(client)
    assert {group: said.unread[client + group] for group in READ} == dict.fromkeys(READ, 0)


@pytest.mark.parametrize("client", MESSENGERS)
def test_transactions(said: Conversations, client: str, request: pytest.FixtureRequest) -> None:
    events = said.events(client)
    all_delivered(events, "halves", ["commit", "unknown"])
    asked = set(bodies(events, "got", "check"))
    if request.node.callspec.params["cluster"] == FIRETRAIL:
        assert asked == {"unknown"}
    else:  # Java's broker stores ends of transactions every 3 s, and may ask about them before that
        assert {"unknown"} <= asked <= {"commit", "rollback", "unknown"}


@pytest.mark.parametrize("check", FEATURES, ids=check_name)
@pytest.mark.parametrize("client", SHOWMEN)
def test_features(said: Conversations, cluster: Cluster, client: str, check: Check) -> None:
    if check is check_restart and not cluster.restart:
        pytest.skip("nothing of Firetrail is in this cluster, so nothing was killed")
    check(said.events(client))


# -- what only the Python client shows -----------------------------------------------------------


def test_receipts_have_nine_words(said: Conversations) -> None:
    assert {event["words"] for event in of(said.events("Python"), "got", "push")} == {9}


def test_a_failure_in_order_comes_again(said: Conversations) -> None:
    got = [event for event in of(said.events("Python"), "got", "fifo") if event["body"] == "again"]
    assert [event["group"] for event in got] == ["order-0"] * 2


def test_delivery_times(said: Conversations) -> None:
    events = said.events("Python")
    all_delivered(events, "delay", ["later"])
    (got,) = of(events, "got", "delay")
    assert got["time"] >= of(events, "sent", "delay")[1]["due"]
