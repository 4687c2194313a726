"""A replica notices that nothing arrives from its master, and says since when."""

import asyncio
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.client.clusters import until
from tests.replication.masters import QUICK, master_in, replica_in, state_of

from firetrail.replication.ha.ha_client import HAClient
from firetrail.replication.ha.ha_source import HASocket
from firetrail.replication.replica import follower
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.text import human_time

FAILED, FOLLOWING = FollowerState.FAILED, FollowerState.FOLLOWING


async def test_a_silent_ha_port_is_a_failure_until_something_arrives(tmp_path: Path) -> None:
    """The master answers at its other port. A new connection alone is no success either."""
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        port = master.settings["haListenPort"]
        with socket.create_server(("127.0.0.1", 0)) as mute:
            master.settings["haListenPort"] = str(mute.getsockname()[1])
            hasty = replace(QUICK, silence_s=1.0, unheard_s=0.1)
            async with replica_in(tmp_path / "r", master.address, settings=hasty) as replica:
                error = await state_of(replica, FAILED, "nothing has arrived from the HA port")
                assert f"up to {master.store.log.max_offset} and the replica up to 0" in error
                await state_of(replica, FAILED, "it has sent nothing for")
                states = set()
                while replica.follower._connection is None:
                    await asyncio.sleep(0.01)
                while replica.follower._connection is not None:
                    states.add(replica.follower.status.state)
                    await asyncio.sleep(0.01)
                assert states == {FAILED}
                master.settings["haListenPort"] = port
                await state_of(replica, FOLLOWING)
                await until(lambda: replica.end == master.store.log.max_offset)


class _Deaf(HAClient):
    """A connection over which nothing arrives while ``is_cut``, as behind a firewall."""

    is_cut = False

    def _receive(self, connection: HASocket, *, waits: bool) -> int:
        if not _Deaf.is_cut:
            return super()._receive(connection, waits=waits)
        time.sleep(0.01)
        raise TimeoutError


async def test_a_replica_that_is_cut_off_says_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is missing, and the master's broker does not answer either."""
    monkeypatch.setattr(follower, "HAClient", _Deaf)
    monkeypatch.setattr(_Deaf, "is_cut", False)
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        unheard = replace(QUICK, unheard_s=0.3)
        async with replica_in(tmp_path / "r", master.address, settings=unheard) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            await state_of(replica, FOLLOWING)
            _Deaf.is_cut = True
            master.refusal = "it does not answer"

            def says_since_when() -> bool:
                status = replica.follower.status
                said = f"since {human_time(status.read_at_ms)}; check the network"
                return status.state is FAILED and said in status.error

            await until(says_since_when)
            assert replica.follower.status.lag == -1
            _Deaf.is_cut, master.refusal = False, ""
            await state_of(replica, FOLLOWING)  # heartbeats are enough
