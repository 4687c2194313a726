"""Firetrail as the replica of a Java master, 4.9.7 and 5.3.3, over RocketMQ's HA port."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from interop import commands
from interop.messages import long_retry, mixed, specials
from interop.peer import Java
from interop.replicas import (
    HA_CONF,
    NAME,
    SIZES,
    caught_up,
    check_java_sees_the_same,
    check_same,
    create_topic,
    following,
    log_end,
    replica_config,
    routed,
    send_all_kinds,
    send_some,
)
from interop.servers import LINES, MASTER, SYNC_MASTER, Role, Servers, ha_address, our_name_server

from firetrail import FlushMode
from firetrail.client import SendStatus

LIMIT_S = 240.0
pytestmark = pytest.mark.time_limit(LIMIT_S)
SYNC_CONF = "inSyncReplicas=2\ntotalReplicas=2\nslaveTimeout=20000\n"
CRC_CONF = "enabledAppendPropCRC=true\n"


def write_specials(line: str, root: Path, crc: bool) -> None:
    """Write every record variant with the Java store, before the broker opens the folder."""
    extra = long_retry() if line == "v5" else []
    options = ["--prop-crc"] if crc else []
    Java(line).session(root, mixed(1, 180, specials() + extra), sizes=SIZES, options=options)


@pytest.mark.parametrize("role", [MASTER, SYNC_MASTER], ids=lambda role: role.name)
@pytest.mark.parametrize("line", LINES)
async def test_a_replica_has_the_log_and_the_queues_of_its_master(
    line: str, role: Role, tmp_path: Path
) -> None:
    """A SYNC_MASTER acknowledges what the replica has synced, at the ends of records."""
    is_sync = role is SYNC_MASTER
    crc = is_sync and line == "v5"
    settings = f"{SYNC_CONF if is_sync else ''}{CRC_CONF if crc else ''}"
    java = Servers(line, tmp_path, settings=HA_CONF)
    master, replica = tmp_path / NAME, tmp_path / "replica"
    write_specials(line, master, crc)
    config = replica_config(flush=FlushMode.SYNC if is_sync else FlushMode.ASYNC)
    with (
        our_name_server() as namesrv,
        java.broker(namesrv, NAME, signal.SIGKILL, role=role, settings=settings) as broker,
        following(replica, ha_address(broker), config) as store,
    ):
        await create_topic(broker)
        await routed(namesrv)
        while store.log.max_offset < await log_end(namesrv, broker):
            await asyncio.sleep(0.05)
        results = await send_some(namesrv, 300) + await send_all_kinds(namesrv)
        end = await caught_up(namesrv, broker, store)
    assert {result.status for result in results} == {SendStatus.OK}
    assert end > 2 * SIZES.log
    check_same(master, replica, 0, end)
    code, (report,) = commands.run("fsck", replica, "--json")
    assert (code, report["problems"]) == (0, [])
    check_java_sees_the_same(line, master, replica, end)
