"""``firetrail up`` for gRPC clients, with the topics and groups that their programs use.

:func:`conversation` and :func:`killed_conversation` run such a program. :class:`Restartable` and
:func:`talking` are their parts, for servers that several programs share.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from interop.stock import WAIT_S, Event, run_client
from tests.ports import free_port

from firetrail.client import Admin
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.messages.retry_policies import (
    EXPONENTIAL,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
)

CONF = """\
listenPort={}
enablePropertyFilter=true
transactionTimeOut=1000
transactionCheckInterval=1000
transactionCheckMax=1000
"""
KINDS_5_3 = ("Normal", "Fifo", "Transaction", "Delay")
KINDS = (*KINDS_5_3, "Priority")

T = TypeVar("T")


@contextmanager
def serving(
    folder: Path, port: int = 0, grpc_port: int = 0, namesrv_port: int = 0, *, settings: str = ""
) -> Iterator[dict[str, str]]:
    """``firetrail up`` in a process of its own, which is killed at the end; its addresses.

    ``settings`` are further lines of its configuration.
    """
    conf = folder / "broker.conf"
    conf.touch(0o600)
    conf.write_text(CONF.format(port) + settings)
    arguments = ["up", str(folder / "store"), "-c", str(conf), "--json"]
    arguments += ["--namesrv-port", str(namesrv_port), "--grpc-port", str(grpc_port)]
    with running(*arguments) as addresses:
        yield addresses


@contextmanager
def proxy(namesrv: str, port: int = 0) -> Iterator[str]:
    """``firetrail proxy`` in a process of its own, in front of a cluster; its address."""
    with running("proxy", "--namesrv", namesrv, "--port", str(port), "--json") as addresses:
        yield addresses["grpc"]


@contextmanager
def running(*arguments: str) -> Iterator[dict[str, str]]:
    """A command in a process of its own, which is killed at the end; what it prints as JSON."""
    command = [sys.executable, "-m", "firetrail", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


class Restartable(Generic[T]):
    """A context with a server, which can be killed and started again."""

    def __init__(self, start: Callable[[], AbstractContextManager[T]]) -> None:
        self._start = start
        self._stack = ExitStack()

    def __enter__(self) -> T:
        return self._stack.enter_context(self._start())

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def restart(self) -> None:
        """Kill the server, and start it again."""
        self._stack.close()
        self._stack.enter_context(self._start())


async def prepared(namesrv: str, prefix: str = "Grpc", kinds: Sequence[str] = KINDS) -> None:
    """Topics with their types, and groups: gRPC clients create no topics."""
    async with Admin(namesrv) as admin:
        for kind in kinds:
            attributes = f"+message.type={kind.upper()}"
            await admin.create_topic(prefix + kind, 4, attributes=attributes)
        await admin.create_topic(prefix + "Failing", 1)
        await admin.create_topic(prefix + "Batch", 4)
        orderly = SubscriptionGroupConfig(prefix + "Orderly", consume_message_orderly=True)
        await admin.create_group(orderly)
        policy = GroupRetryPolicy(EXPONENTIAL, ExponentialRetryPolicy(initial=1000))
        await admin.create_group(
            SubscriptionGroupConfig(
                prefix + "Exponential", consume_message_orderly=True, group_retry_policy=policy
            )
        )
        soon = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy([1000]))
        failing = SubscriptionGroupConfig(
            prefix + "FailingGroup", retry_max_times=1, group_retry_policy=soon
        )
        await admin.create_group(failing)


def conversation(
    program: Sequence[str | Path], folder: Path, *arguments: str, settings: str = ""
) -> list[Event]:
    """Run a program, whose first argument is the address of the service; return what it says."""
    with serving(folder, settings=settings) as addresses:
        asyncio.run(prepared(addresses["name_server"]))
        return run_client([*program, addresses["grpc"], *arguments], folder)


def killed_conversation(
    program: Sequence[str | Path], folder: Path, *arguments: str
) -> list[Event]:
    """Run a program, and kill the server meanwhile; return what the program says.

    When it says ``ready``, the server is killed and started again, and the program gets a line on
    its standard input. It ends with ``done``.
    """
    ports = free_port(), free_port()
    server = Restartable(lambda: serving(folder, *ports))
    with server as addresses:
        asyncio.run(prepared(addresses["name_server"]))
        with talking([*program, addresses["grpc"], *arguments], folder) as client:
            said = until(client, "ready")
            server.restart()
            return said + rest(client)


@contextmanager
def talking(command: Sequence[str | Path], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program, which logs into the folder; it is killed if the test fails."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            yield client
        except BaseException:
            client.kill()
            raise


def until(client: subprocess.Popen[str], word: str) -> list[Event]:
    """Return what a program says, up to an event with this word."""
    found: list[Event] = []
    assert client.stdout is not None
    for line in client.stdout:
        if line.startswith("{"):
            found.append(json.loads(line))
            if word in found[-1]:
                return found
    raise AssertionError(f"the program ended before it said {word}: {found[-3:]}")


def rest(client: subprocess.Popen[str]) -> list[Event]:
    """Let a program go on that has said ``ready``; return what it says from there to its end."""
    assert client.stdin is not None
    client.stdin.write("go on\n")
    client.stdin.flush()
    return until_end(client)


def until_end(client: subprocess.Popen[str]) -> list[Event]:
    """Return what a program says up to its end."""
    said = until(client, "done")
    assert client.wait(WAIT_S) == 0
    return said
