"""``firetrail up`` for gRPC clients, with the topics and groups that their programs use.

:func:`conversation` and :func:`killed_conversation` run such a program.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from interop.servers import free_port
from interop.stock import WAIT_S, Event, run_client

from firetrail.client import Admin
from firetrail.remoting.bodies import SubscriptionGroupConfig
from firetrail.remoting.retry_policies import (
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
KINDS = ("Normal", "Fifo", "Transaction", "Delay", "Priority")


@contextmanager
def serving(
    folder: Path, port: int = 0, grpc_port: int = 0, *, settings: str = ""
) -> Iterator[dict[str, str]]:
    """``firetrail up`` in a process of its own, which is killed at the end; its addresses.

    ``settings`` are further lines of its configuration.
    """
    conf = folder / "broker.conf"
    conf.touch(0o600)
    conf.write_text(CONF.format(port) + settings)
    arguments = ["up", str(folder / "store"), "-c", str(conf), "--namesrv-port", "0", "--json"]
    arguments += ["--grpc-port", str(grpc_port)]
    with running(*arguments) as addresses:
        yield addresses


@contextmanager
def proxy(namesrv: str) -> Iterator[str]:
    """``firetrail proxy`` in a process of its own, in front of a cluster; its address."""
    with running("proxy", "--namesrv", namesrv, "--port", "0", "--json") as addresses:
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


async def prepared(namesrv: str) -> None:
    """Topics with their types, and groups: gRPC clients create no topics."""
    async with Admin(namesrv) as admin:
        for kind in KINDS:
            attributes = f"+message.type={kind.upper()}"
            await admin.create_topic(f"Grpc{kind}", 4, attributes=attributes)
        await admin.create_topic("GrpcFailing", 1)
        await admin.create_topic("GrpcBatch", 4)
        orderly = SubscriptionGroupConfig("GrpcOrderly", consume_message_orderly=True)
        await admin.create_group(orderly)
        policy = GroupRetryPolicy(EXPONENTIAL, ExponentialRetryPolicy(initial=1000))
        await admin.create_group(
            SubscriptionGroupConfig(
                "GrpcExponential", consume_message_orderly=True, group_retry_policy=policy
            )
        )
        soon = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy([1000]))
        failing = SubscriptionGroupConfig(
            "GrpcFailingGroup", retry_max_times=1, group_retry_policy=soon
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
    with serving(folder, *ports) as addresses:
        asyncio.run(prepared(addresses["name_server"]))
        client = subprocess.Popen(
            [*program, addresses["grpc"], *arguments],
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with killed_at_failure(client):
            said = until(client, "ready")
    with killed_at_failure(client), serving(folder, *ports):
        assert client.stdin is not None
        client.stdin.write("go on\n")
        client.stdin.flush()
        said += until(client, "done")
        assert client.wait(WAIT_S) == 0
    with client:
        return said


@contextmanager
def killed_at_failure(client: subprocess.Popen[str]) -> Iterator[None]:
    """End a program if the test fails."""
    try:
        yield
    except BaseException:
        with client:
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
