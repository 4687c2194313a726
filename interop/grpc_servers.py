"""``firetrail up`` for gRPC clients, with the topics and groups that their programs use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firetrail.client import Admin
from firetrail.remoting.bodies import SubscriptionGroupConfig
from firetrail.remoting.retry_policies import CustomizedRetryPolicy, GroupRetryPolicy

CONF = """\
listenPort={}
enablePropertyFilter=true
transactionTimeOut=1000
transactionCheckInterval=1000
transactionCheckMax=1000
"""
KINDS = ("Normal", "Fifo", "Transaction", "Delay")


@contextmanager
def serving(folder: Path, port: int = 0, grpc_port: int = 0) -> Iterator[dict[str, str]]:
    """``firetrail up`` in a process of its own, which is killed at the end; its addresses."""
    conf = folder / "broker.conf"
    conf.write_text(CONF.format(port))
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
        orderly = SubscriptionGroupConfig("GrpcOrderly", consume_message_orderly=True)
        await admin.create_group(orderly)
        soon = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy([1000]))
        failing = SubscriptionGroupConfig(
            "GrpcFailingGroup", retry_max_times=1, group_retry_policy=soon
        )
        await admin.create_group(failing)
