"""Brokers with TLS, and with signatures, under load by RocketMQ's own Java client.

With TLS, Firetrail's and Java's broker have the same certificate (P-256) and accept only TLS. With
signatures, Firetrail checks a user's signature and permissions for every request; it is compared
with itself, without access control. The CPU time that the audit log takes is measured with
Firetrail's client, with requests that are allowed and with requests that are all denied.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from interop.servers import BROKER, Servers
from tests.tls.authority import Authority, Issued

from benchmarks.bench import Bench
from benchmarks.figures import Json, Line, Unit, samples
from benchmarks.measurements import OURS
from benchmarks.servers import (
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
from firetrail.client import Access, Admin, Credentials
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

ADMIN = Credentials("admin", "the-password-of-admin")
USER = Credentials("benchmark", "the-password-of-the-user")
UNSIGNED = "without signatures"
UNAUDITED = "without an audit log"
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
    yield from beside_java(bench, partial(_run, options=(USE_TLS,)), figures, STARTS)


@contextmanager
def firetrail_with_users(folder: Path, settings: str = "") -> Iterator[Served]:
    """``firetrail up`` with access control, and a user with the permissions that the load needs.

    ``settings`` are further lines of its ``broker.conf``.
    """
    conf = folder / "broker.conf"
    conf.touch(0o600)
    first = json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key})
    conf.write_text(
        f"authenticationEnabled=true\nauthorizationEnabled=true\ninitAuthenticationUser={first}\n"
        f"{settings}"
    )
    with firetrail_broker(folder, "-c", str(conf)) as served:
        asyncio.run(_create_user(served.namesrv))
        yield served


async def _create_user(namesrv: str) -> None:
    resources = "Topic:TBW102", "Topic:Single", "Topic:Batch", "Group:benchmark_consumer"
    async with Admin(namesrv, access=Access(ADMIN)) as admin:
        await admin.create_user(USER.access_key, USER.secret_key)
        await admin.set_acl(USER.access_key, resources, ["Pub", "Sub"])


def signed_serving(bench: Bench) -> Iterator[Line]:
    """Throughput of sends and of a consumer with signatures and permissions."""
    sign = tuple(
        f"-Dload.{key}={value}"
        for key, value in (("accessKey", USER.access_key), ("secretKey", USER.secret_key))
    )
    answers = bench.take_turns(
        {
            OURS: partial(_run, bench, firetrail_with_users, options=sign),
            UNSIGNED: partial(_run, bench, firetrail_broker, options=()),
        }
    )
    for title, unit, name, wanted in (
        ("broker with signatures, send, 64 threads", Unit.MESSAGES, "send", 0.8),
        ("broker with signatures, send, batches of 32", Unit.MESSAGES, "batch", 0.8),
        ("broker with signatures, consume", Unit.MESSAGES, "consume", None),
        ("broker with signatures, CPU per send", Unit.SECONDS, "send_cpu_s", None),
    ):
        ours, theirs = (samples(unit, answers[each], name) for each in (OURS, UNSIGNED))
        yield Line(title, ours, UNSIGNED, theirs, wanted)


def audited_serving(bench: Bench) -> Iterator[Line]:
    """CPU time of a broker with and without an audit log, for sends and for denied sends."""
    answers = bench.take_turns(
        {
            OURS: partial(_audit, bench, "audit_log=true\n"),
            UNAUDITED: partial(_audit, bench, "audit_log=false\n"),
        }
    )
    for title, name in (
        ("broker with an audit log, CPU per send", "send_cpu_s"),
        ("broker with an audit log, CPU per denied send", "denied_cpu_s"),
    ):
        ours, theirs = (samples(Unit.SECONDS, answers[each], name) for each in (OURS, UNAUDITED))
        yield Line(title, ours, UNAUDITED, theirs, None)


def _audit(bench: Bench, settings: str) -> Json:
    count = bench.scale.served // 10  # the client is in Python
    with bench.folder("secured") as folder:
        folder.mkdir()
        with firetrail_with_users(folder, settings) as served:
            asyncio.run(_send(served.address, "Single", count // 10, ResponseCode.SUCCESS))
            used = [cpu_s(served.pid)]
            asyncio.run(_send(served.address, "Single", count, ResponseCode.SUCCESS))
            used.append(cpu_s(served.pid))
            asyncio.run(_send(served.address, "Forbidden", count, ResponseCode.NO_PERMISSION))
            used.append(cpu_s(served.pid))
    return {
        "send_cpu_s": (used[1] - used[0]) / count,
        "denied_cpu_s": (used[2] - used[1]) / count,
    }


async def _send(address: str, topic: str, count: int, expected: ResponseCode) -> None:
    """Send messages, as many at a time as the Java client has threads."""
    fields = {"a": "G", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    client = RemotingClient(access=Access(USER))

    async def send() -> None:
        for _ in range(count // THREADS):
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, bytes(SIZE))
            answer = await client.request(address, command)
            if answer.code != expected:
                raise RuntimeError(f"a send to {topic} was answered {answer.code}: {answer.remark}")

    try:
        await asyncio.gather(*(send() for _ in range(THREADS)))
    finally:
        await client.close()


def _run(bench: Bench, start: Start, options: Sequence[str]) -> Json:
    sent = bench.scale.served
    many = 4 * sent
    with bench.folder("secured") as folder:
        folder.mkdir()
        with start(folder) as served:
            before = cpu_s(served.pid)
            play = partial(load, served.namesrv, options=options)
            single = play("send", "Single", THREADS, SIZE, sent, 1)
            used_s = cpu_s(served.pid) - before
            batch = play("send", "Batch", THREADS, SIZE, many, BATCH)
            consume = play("consume", "Batch", many)
    return {
        "send": single["per_s"],
        "send_cpu_s": used_s / (1.2 * sent),  # and a warm-up
        "batch": batch["per_s"],
        "consume": consume["per_s"],
    }


SECURING = {"tls": tls_serving, "signatures": signed_serving, "audit": audited_serving}
