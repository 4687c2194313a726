"""Firetrail as a learner of a Java cluster in controller mode, 5.3.3."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from random import Random

import pytest
from interop.replicas import (
    BIG,
    HA_CONF,
    NAME,
    QUEUES,
    TOPIC,
    caught_up,
    check_same,
    create_topic,
    follower_of,
    log_end,
    reached,
    routed,
    send_some,
)
from interop.servers import BROKER, MASTER, SLAVE, Role, Servers, our_name_server

from firetrail.client import Admin, Message, MessageQueue, Producer, SendStatus
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.admin.admin_bodies import HARuntimeInfo
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import REQUEST_MAX_S, Master, MasterAddress
from firetrail.replication.replica.rewind import rewind
from firetrail.store.broker_store import BrokerStore
from firetrail.system import SYSTEM

pytestmark = pytest.mark.time_limit(240)
LEARNER = Role("SLAVE", 100)
COUNT = 300
TAIL = 5
"""Messages of the largest size: more than the buffers of a connection between brokers hold."""


async def test_a_learner_follows_the_next_master_after_a_rewind(tmp_path: Path) -> None:
    """A slave that lags becomes master: it lacks records that the learner has.

    Only the slave's acknowledgement confirms them, so consumers of the learner have not seen them.
    """
    java = Servers("v5", tmp_path, settings=HA_CONF)
    replica = tmp_path / LEARNER.folder(NAME)
    with our_name_server() as namesrv, java.controller() as controller:
        settings = (
            f"enableControllerMode=true\ncontrollerAddr={controller}\nallAckInSyncStateSet=true\n"
            "slaveTimeout=500\n"
        )
        with java.broker(namesrv, NAME, signal.SIGKILL, role=MASTER, settings=settings) as old:
            first = java.pids[BROKER]
            with java.broker(namesrv, NAME, signal.SIGKILL, role=SLAVE, settings=settings) as new:
                second = java.pids[BROKER]
                await create_topic(old)
                await routed(namesrv)
                await send_some(namesrv, COUNT)
                async with follower_of(replica, old, dispatches=False) as (store, follower):
                    await in_sync(old)
                    await caught_up(namesrv, old, store, quiet_s=0.5)
                    assert visible(store) == COUNT
                    assert len(EpochFile(SYSTEM, replica).epochs) == 1

                    os.kill(second, signal.SIGSTOP)
                    await send_unconfirmed(namesrv)
                    end = await caught_up(namesrv, old, store, quiet_s=0.5)
                    assert visible(store) == COUNT

                    os.kill(first, signal.SIGKILL)
                    os.kill(second, signal.SIGCONT)
                    follower.follow(MasterAddress(new))
                    error = await reached(follower, FollowerState.DIVERGED)
                    assert f"firetrail replica rewind STORE --of {new}" in error
                    assert (store.log.max_offset, visible(store)) == (end, COUNT)
                await rewind_to(replica, new)
                with java.our_broker(namesrv, NAME, role=LEARNER) as learner:
                    await routed(namesrv)
                    await send_some(namesrv, COUNT, "more")
                    end = await log_end(namesrv, new)
                    for broker in (new, learner):
                        await dispatched(namesrv, broker, end)
    check_same(tmp_path / f"{NAME}-1", replica, 0, end)
    epochs = EpochFile(SYSTEM, replica).epochs
    assert len(epochs) == 2
    assert epochs == EpochFile(SYSTEM, tmp_path / f"{NAME}-1").epochs


async def in_sync(broker: str) -> None:
    """Wait until one slave of a master is a member of its in-sync set, and the learner is not."""
    client = RemotingClient()
    try:
        while True:
            request = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS, {})
            answer = HARuntimeInfo.decode((await client.ask(broker, request)).content)
            members = sorted(each.in_sync for each in answer.ha_connection_info)
            if members == [False, True]:
                return
            await asyncio.sleep(0.1)
    finally:
        await client.close()


async def dispatched(namesrv: str, broker: str, end: int) -> None:
    """Wait until consumers of a broker can see its log up to ``end``."""
    async with Admin(namesrv) as admin:
        while True:
            figures = await admin.runtime_info(broker)
            behind = int(figures["dispatchBehindBytes"])
            if int(figures["commitLogMaxOffset"]) - behind >= end:
                return
            await asyncio.sleep(0.1)


async def send_unconfirmed(namesrv: str) -> None:
    """Send large messages that no member of the in-sync set can acknowledge."""
    rng = Random(1)
    async with Producer(namesrv, "tail", timeout_s=20) as producer:
        sends = [
            producer.send(Message(TOPIC, rng.randbytes(BIG)), queue=MessageQueue(TOPIC, NAME, 0))
            for _ in range(TAIL)
        ]
        statuses = {result.status for result in await asyncio.gather(*sends)}
    assert statuses == {SendStatus.FLUSH_SLAVE_TIMEOUT}


async def rewind_to(replica: Path, broker: str) -> None:
    """Remove what a master does not have from a replica."""
    client = RemotingClient()
    try:
        done = await rewind(SYSTEM, replica, Master(client, MasterAddress(broker), REQUEST_MAX_S))
    finally:
        await client.close()
    assert done.plan.removed is not None
    assert done.plan.removed.loss.messages > 0


def visible(store: BrokerStore) -> int:
    """Return how many messages of the topic consumers can read."""
    return sum(store.queues.max_offset(TOPIC, number) for number in range(QUEUES))
