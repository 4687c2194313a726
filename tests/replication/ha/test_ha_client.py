"""Reports of a replica to its master: as soon as it can, but rarely while it catches up."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, Machine
from tests.replication.logs import SMALL, written_log

from firetrail import FlushMode
from firetrail.errors import NotReachedError
from firetrail.replication.ha import ha_client
from firetrail.replication.ha.ha_client import HAClient
from firetrail.replication.ha.ha_frames import FROM_THE_START, ReportReader, encode_header
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole

RECEIVE_SIZE = 64


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def replica(tmp_path: Path, machine: Machine) -> Iterator[BrokerStore]:
    config = SMALL.replace(role=BrokerRole.SLAVE, flush=FlushMode.SYNC)
    with BrokerStore.open(tmp_path / "replica", config, system=machine.system) as store:
        yield store


@contextmanager
def connected(replica: BrokerStore) -> Iterator[tuple[HAClient, socket.socket]]:
    """Yield a client that is not following yet, and the master's end of its connection."""
    clock = replica.log.queue.system.clock
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
        client = HAClient(replica.log_copy(), address, 0, clock, heartbeat_s=1000)
        client.is_confirmed = False  # as with a master of RocketMQ
        client.connect()
        master, _ = port.accept()
        with master:
            master.settimeout(PATIENCE_S)
            yield client, master


def transfer(log: bytes) -> bytes:
    """Return what a master sends to an empty replica."""
    return encode_header(1, len(log) - 1) + log[1:]


@pytest.mark.parametrize(("most", "count"), [(1 << 20, 1), (500, 4)])
def test_a_replica_that_is_behind_syncs_and_reports_rarely(
    tmp_path: Path,
    replica: BrokerStore,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    count: int,
) -> None:
    monkeypatch.setattr(ha_client, "RECEIVE_SIZE", RECEIVE_SIZE)
    monkeypatch.setattr(ha_client, "REPORT_MAX", most)
    log = written_log(tmp_path / "master", 0.9)
    assert len(log) > 1500
    machine.files.forget()
    with connected(replica) as (client, master):
        master.sendall(transfer(log))
        master.shutdown(socket.SHUT_WR)
        with pytest.raises(NotReachedError, match="it has closed the HA connection"):
            client.follow()
        found = ReportReader().feed(master.recv(4096))
    assert found[0] == FROM_THE_START
    assert found[-1] == len(log)
    assert len(found) == 1 + count
    assert machine.files.count("sync", "commitlog/0") <= 1 + count


def test_what_ends_with_a_full_buffer_is_reported_at_once(
    tmp_path: Path, replica: BrokerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written_log(tmp_path / "master", 0.9)
    monkeypatch.setattr(ha_client, "RECEIVE_SIZE", len(transfer(log)))
    monkeypatch.setattr(ha_client, "POLL_S", 2 * PATIENCE_S)
    with connected(replica) as (client, master):
        master.sendall(transfer(log))
        following = threading.Thread(target=client.follow)
        following.start()
        try:
            reader, found = ReportReader(), list[int]()
            while len(found) < 2:
                found += reader.feed(master.recv(4096))
        finally:
            client.stop()
            following.join()
    assert found == [FROM_THE_START, len(log)]
