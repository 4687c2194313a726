"""gRPC services under load: Firetrail's and Java's proxy in local mode, driven by the same client.

The client is grpc-java with RocketMQ's published stubs (``benchmarks/java/GrpcLoad.java``): it runs
on all cores, its jars are those of Java's proxy, and it spends less CPU time per call than either
server. It makes the calls that released clients make. Server and client share the machine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from interop.replicas import routed
from interop.servers import PROXY, PROXY_LINE, Servers, jars

from benchmarks.bench import Bench
from benchmarks.contestants import ROOT
from benchmarks.figures import Json, Line, Unit, samples
from benchmarks.measurements import OURS
from benchmarks.servers import (
    HEAP,
    RELAYED_PER_S,
    SETTINGS,
    Figure,
    Served,
    Start,
    beside_java,
    last_line,
    memory,
)
from firetrail.client import Admin

JAVA = "Java proxy 5.3.3"
BROKER_NAME = "broker-a"
TOPICS = ("GrpcSend", "GrpcRelay")
CROWD_TOPIC = "GrpcCrowd"
QUEUES = 8
LOAD = ROOT / "benchmarks" / "java" / "GrpcLoad.java"


@contextmanager
def firetrail_service(folder: Path) -> Iterator[Served]:
    """``firetrail up`` on free ports."""
    command = [sys.executable, "-m", "firetrail", "up", str(folder / "store"), "--json"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--port", "0", "--namesrv-port", "0", "--grpc-port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        took_s = time.perf_counter() - began
        try:
            yield Served(addresses["name_server"], addresses["grpc"], process.pid, took_s)
        finally:
            process.terminate()


@contextmanager
def java_service(folder: Path) -> Iterator[Served]:
    """Run Java's name server and its proxy with a broker in it; only the latter is measured."""
    servers = Servers(PROXY_LINE, folder, HEAP, SETTINGS)
    with servers.name_server() as namesrv:
        began = time.perf_counter()
        with servers.local_proxy(namesrv, BROKER_NAME) as (address, _):
            took_s = time.perf_counter() - began
            yield Served(namesrv, address, servers.pids[PROXY], took_s)


def grpc_serving(bench: Bench) -> Iterator[Line]:
    """Throughput, CPU time, latency, start and memory."""
    relay = f"gRPC, latency to the consumer at {RELAYED_PER_S}/s"
    figures: tuple[Figure, ...] = (
        ("gRPC, send, 64 calls in flight", Unit.MESSAGES, "send", 1.0),
        ("gRPC, CPU of the server per send", Unit.SECONDS, "send_cpu_s", None),
        ("gRPC, CPU of the client per send", Unit.SECONDS, "send_client_s", None),
        ("gRPC, receive and acknowledge", Unit.MESSAGES, "receive", 1.0),
        ("gRPC, CPU of the server per received message", Unit.SECONDS, "receive_cpu_s", None),
        ("gRPC, CPU of the client per received message", Unit.SECONDS, "receive_client_s", None),
        (f"{relay}, p50", Unit.SECONDS, "p50_s", 1.0),
        (f"{relay}, p99", Unit.SECONDS, "p99_s", 1.0),
        ("gRPC, CPU of the server per message at that rate", Unit.SECONDS, "relay_cpu_s", None),
        ("gRPC, start", Unit.SECONDS, "start_s", None),
        ("gRPC, resident memory when started", Unit.MEMORY, "resident", 5.0),
        ("gRPC, resident memory after the load", Unit.MEMORY, "resident_after", 5.0),
        ("gRPC, anonymous memory after the load", Unit.MEMORY, "private_after", 5.0),
    )
    starts: dict[str, Start] = {OURS: firetrail_service, JAVA: java_service}
    yield from beside_java(bench, _run, figures, starts)


def crowd(bench: Bench) -> Iterator[Line]:
    """Measure the memory of the server while many clients poll."""
    answers = [_crowd(bench) for _ in range(bench.repeat)]
    clients = f"{bench.scale.crowd:,} clients"
    first, last = (samples(Unit.MEMORY, answers, name) for name in ("first", "last"))
    per_client = samples(Unit.MEMORY, answers, "per_client")
    yield Line(f"gRPC, anonymous memory while {clients} poll", last, "their first poll", first, 0.9)
    yield Line("gRPC, anonymous memory per client that polls", per_client)


def _crowd(bench: Bench) -> Json:
    with bench.folder("served") as folder, firetrail_service(folder) as served:
        asyncio.run(create_topics(served.namesrv, (CROWD_TOPIC,)))
        clients = {"clients": bench.scale.crowd, "seconds": bench.scale.grpc_crowd_s}
        command = [sys.executable, "-m", "benchmarks.grpc_crowd", served.address]
        return last_line([*command, str(served.pid), json.dumps(clients)])


def _run(bench: Bench, start: Start) -> Json:
    with bench.folder("served") as folder:
        folder.mkdir()
        with start(folder) as served:
            figures = {"start_s": served.start_s, "resident": memory(served.pid, "VmRSS")}
            asyncio.run(create_topics(served.namesrv))
            figures |= load(served, bench.scale.grpc_warm, bench.scale.grpc, bench.scale.relayed)
            figures["resident_after"] = memory(served.pid, "VmRSS")
            figures["private_after"] = memory(served.pid, "RssAnon")
    return figures


async def create_topics(namesrv: str, topics: Sequence[str] = TOPICS) -> None:
    """Create the topics of a load: gRPC clients create none."""
    await routed(namesrv, BROKER_NAME)  # the topic of the broker itself: it has registered
    async with Admin(namesrv) as admin:
        for topic in topics:
            await admin.create_topic(topic, QUEUES)
            await routed(namesrv, topic)


def load(served: Served, warm: int, messages: int, relayed: int) -> Json:
    """Return the figures of a load by grpc-java."""
    command = ["java", "-Xmx1g", "-cp", jars(PROXY_LINE), str(LOAD)]
    numbers = (served.pid, warm, messages, RELAYED_PER_S, relayed)
    return last_line([*command, served.address, *map(str, numbers)])


GRPC_SERVING = {"grpc": grpc_serving, "grpc-crowd": crowd}
