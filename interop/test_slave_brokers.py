"""A Firetrail broker as the slave of a Java master: clients read from it if the master is gone.

The Go client v2.1.2 is no such client: it asks only masters how far its group has read, so a group
that starts without a master reads nothing, whatever the slave.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from interop.replicas import (
    HA_CONF,
    NAME,
    TOPIC,
    check_same,
    create_topic,
    log_end,
    offsets_copied,
    read_by_java,
    routed,
    send_all_kinds,
    send_some,
)
from interop.servers import LINES, SLAVE, Servers, our_name_server

from firetrail.client import Admin, PushConsumer, Received
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    ConsumeFromWhere,
    ConsumerOffsets,
    DelayOffsets,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from firetrail.remoting.messages.typed_body import Body
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

LIMIT_S = 300.0
GROUPS = ("JavaReading", "OurReading")
READ = 5
"""Messages of each queue that the groups have read before the master ends."""
TABLES: dict[RequestCode, tuple[type[Body], str]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: (TopicConfigTable, "topic_config_table"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
        SubscriptionGroupTable,
        "subscription_group_table",
    ),
    RequestCode.GET_ALL_CONSUMER_OFFSET: (ConsumerOffsets, "offset_table"),
    RequestCode.GET_ALL_DELAY_OFFSET: (DelayOffsets, "offset_table"),
}
PATIENCE_ROUNDS = 60
EXAMPLE = Path(__file__).parent.parent / "examples" / "replica.py"


async def tables(broker: str) -> dict[str, dict[str, object]]:
    """Return what a broker keeps beside its log."""
    client = RemotingClient()
    found = {}
    try:
        for code, (kind, name) in TABLES.items():
            answer = await client.ask(broker, RemotingCommand(code))
            found[code.name] = getattr(kind.decode(answer.content), name)
    finally:
        await client.close()
    return found


async def check_tables(slave: str, master: str) -> None:
    """Check that a slave has the tables of its master, after the next copy at the latest."""
    own = await tables(slave)
    for _ in range(PATIENCE_ROUNDS):
        if own == await tables(master):
            return
        await asyncio.sleep(0.5)
        own = await tables(slave)
    assert own == await tables(master)


async def read_by_us(namesrv: str, count: int) -> set[tuple[int, int]]:
    """Let a push consumer of Firetrail receive messages; return their queues and offsets."""
    got: set[tuple[int, int]] = set()

    def listener(message: Received) -> None:
        got.add((message.queue_id, message.queue_offset))

    first = ConsumeFromWhere.FIRST_OFFSET
    async with PushConsumer(namesrv, GROUPS[1], listener, {TOPIC: "*"}, start=first):
        while len(got) < count:
            await asyncio.sleep(0.05)
    return got


@pytest.mark.parametrize("line", LINES)
@pytest.mark.time_limit(LIMIT_S)
async def test_clients_read_from_the_slave_after_the_master_was_killed(
    line: str, tmp_path: Path
) -> None:
    java = Servers(line, tmp_path, settings=HA_CONF)
    with our_name_server() as namesrv, ExitStack() as masters_life:
        master = masters_life.enter_context(java.broker(namesrv, NAME, signal.SIGKILL))
        await create_topic(master)
        await routed(namesrv)
        settings = "slaveReadEnable=true\n"
        with java.our_broker(namesrv, NAME, role=SLAVE, settings=settings) as slave:
            await send_some(namesrv, 200)
            await send_all_kinds(namesrv, big=1)
            async with Admin(namesrv) as admin:
                queues = await admin.queues(TOPIC)
                for group in GROUPS:
                    await admin.create_group(group)
                    for queue in queues:
                        await admin.offsets.commit(group, queue, READ)
                await asyncio.sleep(1.5)  # for the delayed message
                ends = {queue.queue_id: await admin.offsets.end(queue) for queue in queues}
            end = await log_end(namesrv, master)
            for group in GROUPS:
                await offsets_copied(slave, group, READ)
            while await log_end(namesrv, slave) < end:
                await asyncio.sleep(0.1)
            check_example(master, tmp_path, sum(ends.values()))
            await check_tables(slave, master)
            masters_life.close()
            rest = {(queue, n) for queue, end in ends.items() for n in range(READ, end)}
            assert read_by_java(line, namesrv, GROUPS[0], len(rest)) == rest
            assert await asyncio.wait_for(read_by_us(namesrv, len(rest)), 60) == rest
    check_same(tmp_path / NAME, tmp_path / SLAVE.folder(NAME), 0, end)


def check_example(master: str, folder: Path, count: int) -> None:
    """Check that the example counts the messages of a Java master with Spark."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), master, str(folder / "copy")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert not done.returncode, done.stderr[-2000:]
    assert f"{TOPIC:<20} {count:>8} messages" in done.stdout, done.stdout
