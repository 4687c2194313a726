"""Stock clients of other languages: their environments, and what they say they sent and got.

A client program takes the address of the name server, does everything that the client can, and
prints a line of JSON for each message: ``{"sent": how, "body": ...}`` when the broker has
acknowledged it, ``{"got": by whom, "body": ...}`` when a consumer has it. Everything else that a
client prints is ignored. Programs sign their requests if the environment has CLIENT_USER and
CLIENT_PASSWORD. If it has CLIENT_TOPIC, they only send a message to this topic and consume it.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from firetrail.client import Access, Admin

HERE = Path(__file__).parent
CACHE = HERE / "target"
WAIT_S = 120
INSTALL_S = 600
BROKER_CONF = """\
listenPort=0
messageDelayLevel=1s 1s 1s 1s 1s
transactionTimeOut=1000
transactionCheckInterval=2000
"""

Event = dict[str, Any]


@contextmanager
def firetrail_up(folder: Path, conf: str = BROKER_CONF) -> Iterator[str]:
    """``firetrail up`` in a process of its own; the address of its name server."""
    path = folder / "broker.conf"
    path.touch(0o600)
    path.write_text(conf)
    arguments = ["up", str(folder / "store"), "-c", str(path), "--namesrv-port", "0"]
    command = [sys.executable, "-m", "firetrail", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()
        assert process.wait(WAIT_S) == 0


def needs(tool: str) -> None:
    """Skip the test if the machine lacks a tool."""
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not on this machine")


class _Recipe(NamedTuple):
    """The files that are copied into an environment, and the commands that build it there."""

    sources: Sequence[Path]
    commands: Sequence[Sequence[str]]


_GO = (["go", "mod", "tidy"], ["go", "build", "-o", "client", "."])
_GO_GRPC = ["go", "build", "-mod=mod", "-o", "client", "."]
_H2SPEC = ["go", "build", "-mod=mod", "-o", "h2spec", "github.com/summerwind/h2spec/cmd/h2spec"]
_GO_EXAMPLE = HERE.parent / "examples" / "clients" / "go"
_NODE = ("package.json", "said.js", "ali_ons.js", "rocketmq_nodejs.js")
_NODE_GRPC = ("said.js", "grpc/package.json", "grpc/client.js")
_NPM = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"]
_PIP = ["venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
_PYTHON = ([sys.executable, "-m", "venv", "--clear", "venv"], [*_PIP, "-r", "requirements.txt"])
_RECIPES = {
    "cpp": _Recipe([HERE / "cpp" / "requirements.txt"], _PYTHON),
    "grpc": _Recipe([HERE / "grpc" / "requirements.txt"], _PYTHON),
    "java-grpc": _Recipe(
        [HERE / "java" / "grpc" / name for name in ("pom.xml", "GrpcClient.java")],
        [
            ["mvn", "-B", "-q", "process-resources"],
            ["javac", "-cp", "lib/*", "-d", ".", "GrpcClient.java"],
        ],
    ),
    "node": _Recipe([HERE / "node" / name for name in _NODE], [_NPM]),
    "node-grpc": _Recipe([HERE / "node" / name for name in _NODE_GRPC], [_NPM]),
    "go": _Recipe([HERE / "go" / name for name in ("go.mod", "main.go")], _GO),
    "go-grpc": _Recipe([HERE / "go" / "grpc" / name for name in ("go.mod", "main.go")], [_GO_GRPC]),
    "rust": _Recipe(
        [HERE / "rust" / name for name in ("Cargo.toml", "main.rs")],
        [["cargo", "build", "--quiet", "--jobs", "2"]],
    ),
    "h2spec": _Recipe([HERE / "h2spec" / "go.mod"], [_H2SPEC]),
    "go-example": _Recipe([_GO_EXAMPLE / name for name in ("go.mod", "hello.go")], _GO),
}


def client_environment(name: str) -> Path:
    """Return the folder of a client's environment; it is built again if a source has changed."""
    recipe = _RECIPES[name]
    folder = CACHE / name
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "made"
        text = "".join(path.read_text() for path in recipe.sources)
        if not stamp.exists() or stamp.read_text() != text:
            folder.mkdir(exist_ok=True)
            for path in recipe.sources:
                shutil.copy(path, folder)
            for command in recipe.commands:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S
                )
                assert not done.returncode, f"{command}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
            stamp.write_text(text)
    return folder


def output(command: Sequence[str | Path], folder: Path, status: int = 0) -> str:
    """Run a client program, which logs into the folder; check its status, return its output."""
    done = _finished(command, folder)
    assert done.returncode == status, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


class Shown(NamedTuple):
    """The status of a client program, its events, and its error output and logs."""

    status: int
    events: list[Event]
    errors: str


def shown(command: Sequence[str | Path], folder: Path) -> Shown:
    """Run a client program that may fail, and logs into the folder; return what it shows."""
    done = _finished(command, folder)
    logs = [path.read_text(errors="replace") for path in folder.glob("**/*.log*")]
    return Shown(done.returncode, _events(done.stdout), "".join([done.stderr, *logs]))


def _finished(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def _events(text: str) -> list[Event]:
    """Return the events in the output of a client program."""
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]


def run_client(command: Sequence[str | Path], folder: Path, status: int = 0) -> list[Event]:
    """Run a client program and return the events that it prints."""
    return _events(output(command, folder, status))


def of(events: Iterable[Event], kind: str, who: str) -> list[Event]:
    """Return the ``sent`` or ``got`` events (``kind``) of ``who``, in the order of the output."""
    return [event for event in events if event.get(kind) == who]


def bodies(events: Iterable[Event], kind: str, who: str) -> list[str]:
    """Return the bodies of these events."""
    return [event["body"] for event in of(events, kind, who)]


def all_delivered(events: Sequence[Event], who: str, expected: Iterable[str]) -> None:
    """Check that a consumer got these messages, each at least once, and no other."""
    got = Counter(bodies(events, "got", who))
    wanted = Counter(expected)
    assert set(got) == set(wanted), who
    assert got >= wanted


def all_pushed(events: Sequence[Event], sent: Sequence[str]) -> None:
    """Check that a push consumer got what was sent, with its keys, tags and properties."""
    all_delivered(events, "push", sent)
    assert {(event["keys"], event["tags"]) for event in of(events, "got", "push")} == {
        (f"key-{body[:20]}", "TagA") for body in sent
    }
    assert {e["body"]: e["colour"] for e in of(events, "got", "push")}["sync"] == "blue"


def all_in_order(events: Sequence[Event]) -> None:
    """Messages of each of four keys came in the order in which they were sent."""
    for key in "0123":
        got = [body for body in bodies(events, "got", "orderly") if body[0] == key]
        assert got == [f"{key}-{n:02}" for n in range(5)]


def tried_again(events: Sequence[Event], topic: str) -> None:
    """Check that one message was delivered three times, each time with a higher count."""
    got = of(events, "got", "retry")
    assert [(event["times"], event["topic"]) for event in got] == [(n, topic) for n in range(3)]
    assert len({event["id"] for event in got}) == 1


def same_messages(events: Sequence[Event], *fields: str) -> int:
    """Whatever was said of a message when it was sent is said of it when it is got.

    Bodies tell messages apart. Returns how many were compared.
    """
    sent = {event["body"]: event for event in events if "sent" in event}
    compared = 0
    for event in events:
        before = sent.get(event["body"]) if "got" in event else None
        if before is not None:
            for field in fields:
                if before.get(field) is not None:
                    assert event[field] == before[field], (field, before, event)
                    compared += 1
    return compared


async def masters(namesrv: str) -> dict[str, str]:
    """Return the addresses of the brokers, by name."""
    async with Admin(namesrv) as admin:
        return await admin.masters()


async def create_topics(namesrv: str, *names: str, access: Access | None = None) -> None:
    """Topics that a client needs and does not make, with four queues each."""
    async with Admin(namesrv, access=access) as admin:
        for name in names:
            await admin.create_topic(name, 4)


async def registered(namesrv: str, access: Access | None = None) -> None:
    """Wait until a broker is known: 5.x registers ten seconds after its start."""
    async with asyncio.timeout(WAIT_S), Admin(namesrv, access=access) as admin:
        while not await admin.masters():
            await asyncio.sleep(0.1)


async def lag(namesrv: str, group: str, topic: str, access: Access | None = None) -> int:
    """Return how many messages of a topic a group has not confirmed."""
    async with Admin(namesrv, access=access) as admin:
        stats = await admin.consume_stats(group, topic)
        return sum(o.broker_offset - o.consumer_offset for o in stats.offset_table.values())
