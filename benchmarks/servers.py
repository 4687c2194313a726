"""Brokers under load: Firetrail's and Java's, driven by RocketMQ's own Java client.

The load is that of RocketMQ's benchmark: 64 threads that each send 128 bytes and wait, and a push
consumer. Broker, name server and client share the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from interop.servers import BROKER, Servers, jars

from benchmarks.bench import Bench
from benchmarks.contestants import ROOT, TIMEOUT_S, RunError
from benchmarks.figures import Json, Line, Unit, samples
from benchmarks.measurements import OURS

JAVA = "Java broker 5.3.3"
LINE = "v5"
HEAP = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g")
SETTINGS = "brokerClusterName=DefaultCluster\nbrokerId=0\nbrokerIP1=127.0.0.1\n"
LOAD = ROOT / "benchmarks" / "java" / "Load.java"
THREADS, SIZE, BATCH = 64, 128, 32
RELAYED_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Served:
    """A broker that runs."""

    namesrv: str
    address: str
    """Of its port for remoting or, of a gRPC service, for gRPC."""
    pid: int
    start_s: float
    """From the start of its process until it says that it serves."""


Start = Callable[[Path], AbstractContextManager[Served]]


@contextmanager
def firetrail_broker(folder: Path, *options: str) -> Iterator[Served]:
    """``firetrail up`` on free ports."""
    command = [sys.executable, "-m", "firetrail", "up", str(folder / "store"), *options]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--port", "0", "--namesrv-port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        namesrv = process.stdout.readline().split()[2]
        address = process.stdout.readline().split()[1]
        try:
            yield Served(namesrv, address, process.pid, time.perf_counter() - began)
        finally:
            process.terminate()


@contextmanager
def java_broker(folder: Path) -> Iterator[Served]:
    """Run Java's name server and broker; only the resources of the broker are measured."""
    servers = Servers(LINE, folder, HEAP, SETTINGS)
    with servers.name_server() as namesrv:
        began = time.perf_counter()
        with servers.broker(namesrv, "broker") as address:
            took_s = time.perf_counter() - began
            yield Served(namesrv, address, servers.pids[BROKER], took_s)


STARTS: dict[str, Start] = {OURS: firetrail_broker, JAVA: java_broker}
Figure = tuple[str, Unit, str, float | None]
"""Title, unit, name in the answers, wanted ratio."""


def serving(bench: Bench) -> Iterator[Line]:
    """Throughput, latency, start and memory."""
    figures: tuple[Figure, ...] = (
        ("broker, send, 64 threads", Unit.MESSAGES, "send", 1.0),
        ("broker, send, batches of 32", Unit.MESSAGES, "batch", 2.0),
        ("broker, consume", Unit.MESSAGES, "consume", 1.0),
        (f"broker, latency to the consumer at {RELAYED_PER_S}/s, p50", Unit.SECONDS, "p50_s", None),
        (f"broker, latency to the consumer at {RELAYED_PER_S}/s, p99", Unit.SECONDS, "p99_s", 1.0),
        ("broker, start", Unit.SECONDS, "start_s", 5.0),
        ("broker, resident memory when started", Unit.MEMORY, "resident", 5.0),
        ("broker, resident memory after the load", Unit.MEMORY, "resident_after", 5.0),
        ("broker, anonymous memory after the load", Unit.MEMORY, "private_after", 5.0),
        ("broker, CPU per send", Unit.SECONDS, "send_cpu_s", None),
    )
    yield from beside_java(bench, _run, figures, STARTS)


def readable(bench: Bench) -> Iterator[Line]:
    """Measure how soon an acknowledged message can be read."""
    figures: tuple[Figure, ...] = (
        ("broker, the first pull after a send finds it", Unit.SHARE, "first", 1.0),
        ("broker, from the response of a send to its message, p50", Unit.SECONDS, "p50_s", 1.0),
        ("broker, from the response of a send to its message, p99", Unit.SECONDS, "p99_s", 1.0),
        ("broker, from the response of a send to its message, max", Unit.SECONDS, "max_s", None),
    )
    yield from beside_java(bench, _read_at_once, figures, STARTS)


def beside_java(
    bench: Bench,
    run: Callable[[Bench, Start], Json],
    figures: Sequence[Figure],
    starts: Mapping[str, Start],
) -> Iterator[Line]:
    """Yield the figures of runs with Firetrail's server and, if installed, with Java's.

    ``starts`` has both by their names, Firetrail's first.
    """
    runs = {name: partial(run, bench, start) for name, start in starts.items()}
    theirs = list(runs)[1]
    if not bench.javas:
        del runs[theirs]
    answers = bench.take_turns(runs)
    for title, unit, name, wanted in figures:
        ours = samples(unit, answers[OURS], name)
        if theirs in answers:
            yield Line(title, ours, theirs, samples(unit, answers[theirs], name), wanted)
        else:
            yield Line(title, ours)


def crowd(bench: Bench) -> Iterator[Line]:
    """Measure how long heartbeats of many connections take while others flood the broker."""
    answers = [_crowd(bench) for _ in range(bench.repeat)]
    beats = samples(Unit.SECONDS, answers, "p99_s")
    title = f"broker, heartbeats of {bench.scale.crowd:,} connections under load, p99"
    yield Line(title, beats, limit=0.1)
    yield Line("broker, anonymous memory under that load", samples(Unit.MEMORY, answers, "private"))


def _run(bench: Bench, start: Start) -> Json:
    sent = bench.scale.served
    with bench.folder("served") as folder:
        folder.mkdir()
        with start(folder) as served:
            figures = {"start_s": served.start_s, "resident": memory(served.pid, "VmRSS")}
            before = cpu_s(served.pid)
            figures["send"] = load(served.namesrv, "send", "Single", THREADS, SIZE, sent, 1)[
                "per_s"
            ]
            figures["send_cpu_s"] = (cpu_s(served.pid) - before) / (1.2 * sent)  # and a warm-up
            many = 4 * sent
            figures["batch"] = load(served.namesrv, "send", "Batch", THREADS, SIZE, many, BATCH)[
                "per_s"
            ]
            figures["consume"] = load(served.namesrv, "consume", "Batch", many)["per_s"]
            relayed = load(served.namesrv, "relay", "Relay", RELAYED_PER_S, sent // 20)
            figures["resident_after"] = memory(served.pid, "VmRSS")
            figures["private_after"] = memory(served.pid, "RssAnon")
    return figures | {"p50_s": relayed["p50_s"], "p99_s": relayed["p99_s"]}


def _read_at_once(bench: Bench, start: Start) -> Json:
    with bench.folder("served") as folder:
        folder.mkdir()
        with start(folder) as served:
            command = [sys.executable, "-m", "benchmarks.readable", served.address]
            return last_line([*command, str(bench.scale.readable)])


def load(namesrv: str, kind: str, topic: str, *numbers: int, options: Sequence[str] = ()) -> Json:
    """Return the figures of a load by RocketMQ's Java client; ``options`` are those of the JVM."""
    command = ["java", "-Xmx1g", "-Drocketmq.client.logUseSlf4j=true", *options]
    program = ["-cp", jars(LINE), str(LOAD)]
    return last_line([*command, *program, kind, namesrv, topic, *map(str, numbers)])


def _crowd(bench: Bench) -> Json:
    with bench.folder("served") as folder, firetrail_broker(folder) as served:
        command = [sys.executable, "-m", "benchmarks.crowd", served.address]
        seconds, connections = bench.scale.crowd_s, bench.scale.crowd
        flooding = json.dumps({"connections": 0, "seconds": seconds + 2})
        beating = {"producers": 0, "consumers": 0, "connections": connections, "seconds": seconds}
        flood = subprocess.Popen([*command, flooding], cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            figures = last_line([*command, json.dumps(beating)])
            figures["private"] = memory(served.pid, "RssAnon")
        finally:
            flood.terminate()
            flood.wait()
    return figures


def last_line(command: list[str]) -> Json:
    """Run a program whose last line of JSON is the result."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RunError(f"{' '.join(command)}: ended with {done.returncode}\n{done.stderr[-2000:]}")
    figures: Json = json.loads(lines[-1])
    return figures


def memory(pid: int, name: str) -> int:
    """Bytes, by the name of a line in ``/proc/PID/status``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RunError(f"the system does not tell {name} of process {pid}")


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


SERVING = {"serving": serving, "readable": readable, "crowd": crowd}
