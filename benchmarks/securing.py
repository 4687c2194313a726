"""Brokers with TLS under load: Firetrail's and Java's, driven by RocketMQ's own Java client.

Both have the same certificate (P-256) and accept only TLS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.servers import BROKER, Servers
from tests.tls.authority import Authority, Issued

from benchmarks.bench import Bench
from benchmarks.figures import Json, Line, Unit
from benchmarks.measurements import OURS
from benchmarks.serving import (
    BATCH,
    HEAP,
    JAVA,
    LINE,
    SETTINGS,
    SIZE,
    THREADS,
    Figure,
    Served,
    Start,
    beside_java,
    cpu_s,
    firetrail_broker,
    load,
)

USE_TLS = "-Dtls.enable=true"
"""Makes every client of a Java process use TLS."""


def _certificate(folder: Path) -> Issued:
    return Authority(folder).issue()


@contextmanager
def firetrail_with_tls(folder: Path) -> Iterator[Served]:
    """``firetrail up`` that accepts only TLS."""
    certificate, key = _certificate(folder)
    files = ("--tls-cert", certificate, "--tls-key", key)
    with firetrail_broker(folder, *files, "--tls-mode", "enforcing") as served:
        yield served


@contextmanager
def java_with_tls(folder: Path) -> Iterator[Served]:
    """Java's name server and broker, which accept only TLS."""
    certificate, key = _certificate(folder)
    flags = (
        *HEAP,
        *("-Dtls.server.mode=enforcing", "-Dtls.test.mode.enable=false"),
        *(f"-Dtls.server.certPath={certificate}", f"-Dtls.server.keyPath={key}"),
    )
    servers = Servers(LINE, folder, flags, f"{SETTINGS}useTLS=true\n")
    with servers.name_server() as namesrv, servers.broker(namesrv, "broker") as address:
        yield Served(namesrv, address, servers.pids[BROKER], 0.0)


STARTS: dict[str, Start] = {OURS: firetrail_with_tls, JAVA: java_with_tls}


def tls_serving(bench: Bench) -> Iterator[Line]:
    """Throughput of sends and of a consumer with TLS."""
    figures: tuple[Figure, ...] = (
        ("broker with TLS, send, 64 threads", Unit.MESSAGES, "send", 1.0),
        ("broker with TLS, send, batches of 32", Unit.MESSAGES, "batch", 1.0),
        ("broker with TLS, consume", Unit.MESSAGES, "consume", 1.0),
        ("broker with TLS, CPU per send", Unit.SECONDS, "send_cpu_s", None),
    )
    yield from beside_java(bench, _run, figures, STARTS)


def _run(bench: Bench, start: Start) -> Json:
    sent = bench.scale.served
    many = 4 * sent
    with bench.folder("secured") as folder:
        folder.mkdir()
        with start(folder) as served:
            before = cpu_s(served.pid)
            single = _load(served, "send", "Single", THREADS, SIZE, sent, 1)
            used_s = cpu_s(served.pid) - before
            batch = _load(served, "send", "Batch", THREADS, SIZE, many, BATCH)
            consume = _load(served, "consume", "Batch", many)
    return {
        "send": single["per_s"],
        "send_cpu_s": used_s / (1.2 * sent),  # and a warm-up
        "batch": batch["per_s"],
        "consume": consume["per_s"],
    }


def _load(served: Served, kind: str, topic: str, *numbers: int) -> Json:
    return load(served.namesrv, kind, topic, *numbers, options=(USE_TLS,))


SECURING = {"tls": tls_serving}
