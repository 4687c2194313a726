"""A group whose real etcd is restored from an older backup, and then emptied."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
from tests.broker.brokers import SMALL
from tests.broker.groups import LAG_S, LEASE_S, BrokerGroup, status_of
from tests.client.clusters import until
from tests.ports import free_ports
from tests.replication.etcd_server import etcd_server
from tests.replication.fake_etcd import Endpoint, FakeEtcd

from firetrail.remoting.wire.codes import ResponseCode
from firetrail.replication.group import lease_keeper
from firetrail.replication.group.group_check import StateConflict
from firetrail.store.settings.store_config import BrokerRole

OK = ResponseCode.SUCCESS


class _Server:
    """A real etcd that is stopped, and started with other data, at one address."""

    cut = False

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._ports = free_ports(2)
        self._running = ExitStack()
        self._folder = folder
        self.url = f"127.0.0.1:{self._ports[0]}"

    def endpoint(self) -> Endpoint:
        return cast(Endpoint, self)

    def start(self, data: Path | None = None) -> None:
        """Start with a copy of some data; without any, with what there is."""
        if data is not None:
            shutil.rmtree(self._folder / "etcd")
            if data.exists():
                shutil.copytree(data, self._folder / "etcd")
        self._running.enter_context(etcd_server(self._folder, ports=self._ports))

    def stop(self, copy: Path | None = None) -> None:
        """Stop; keep a copy of the data."""
        self._running.close()
        if copy is not None:
            shutil.copytree(self._folder / "etcd", copy)


def all_doubt(group: BrokerGroup, doubt: StateConflict) -> bool:
    refusals = [status_of(broker).refusal for broker in group.members.values()]
    return all(refusal is not None and refusal.doubt is doubt for refusal in refusals)


async def test_a_backup_of_etcd_is_refused_and_an_empty_etcd_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "WATCHES_PER_TTL", 10 * LEASE_S)
    server = _Server(tmp_path / "server")
    server.start()
    group = BrokerGroup(
        tmp_path, cast(FakeEtcd, server), SMALL.replace(role=BrokerRole.SYNC_MASTER)
    )
    try:
        for number in (1, 2, 3):
            await group.start(number)
        assert await group.master() == 1
        await group.in_sync(1, 2, 3)
        await group.connected(1)
        assert (await group.send(1, b"0")).code == OK
        server.stop(copy=tmp_path / "backup")
        server.start()
        await group.stop(3)
        group.clocks[1].pushed_s += LAG_S
        await group.in_sync(1, 2)
        await group.connected(1)
        assert (await group.send(1, b"not on 3")).code == OK
        end = group.members[1].broker_store.log.max_offset
        server.stop()
        server.start(tmp_path / "backup")
        await group.start(3)
        await until(lambda: all_doubt(group, StateConflict.OLDER))
        await until(lambda: all(b.role is BrokerRole.SLAVE for b in group.members.values()))
        assert [group.members[n].broker_store.log.max_offset for n in (1, 2)] == [end, end]

        server.stop()
        server.start(tmp_path / "nothing")
        master = await group.master()
        await group.in_sync(1, 2, 3)
        await group.connected(master)
        assert (await group.send(master, b"two")).code == OK
        for number in (1, 2, 3):
            await group.has(number, b"not on 3", b"two")
    finally:
        await group.client.close()
        for number in list(group.members):
            await group.stop(number)
        server.stop()
