"""Clusters for tests of the commands that talk to one, and commands as processes."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers import PATIENCE_S

from firetrail.client import PullConsumer
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.messages.bodies import TopicConfigTable
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig

INTERRUPTIBLE = """\
import signal, sys
from firetrail.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # not so where tests run in the background
sys.exit(main())
"""


@contextmanager
def lonely_name_server(
    topics: TopicConfigTable | None = None, tls: TlsConfig | None = None
) -> Iterator[str]:
    """The address of a name server in a thread, where no broker is running.

    ``topics`` are those of a broker that has registered and is down.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    secured = ServerTls(tls) if tls is not None else None
    server = NameServer(NameServerConfig(listen_port=0), tls=secured)
    if topics is not None:
        server.register_local(cluster="C", name="a", address="127.0.0.1:1", topics=topics)
    port = asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE_S)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


@contextmanager
def running(*arguments: str, stdin: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command as a process, which ends with the test."""
    command = [sys.executable, "-c", INTERRUPTIBLE, *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": stdin}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


async def until_readable(namesrv: str, topic: str, count: int) -> None:
    """Wait until consumers can read this many messages of a topic."""
    async with PullConsumer(namesrv) as consumer:
        queues = await consumer.queues(topic)
        while sum([await consumer.offsets.end(queue) for queue in queues]) < count:
            await asyncio.sleep(0.005)


def settle(namesrv: str, topic: str, count: int) -> None:
    """Wait as ``until_readable`` does. Commands run their own event loop, so tests have none."""
    asyncio.run(until_readable(namesrv, topic, count))
