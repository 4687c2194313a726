"""The HA port: bound while the broker runs, and open for replicas while somebody serves them."""

import socket
from collections.abc import Iterator

import pytest
from tests.helpers import PATIENCE_S, eventually

from firetrail.errors import AddressInUseError
from firetrail.pace.limited_log import BURST
from firetrail.replication.ha.ha_port import HAPort
from firetrail.system import SYSTEM

HOST = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[HAPort]:
    port = HAPort(SYSTEM)
    port.open(HOST, 0)
    yield port
    port.close()


def connected(port: HAPort) -> socket.socket:
    connection = socket.create_connection((HOST, port.port), PATIENCE_S)
    connection.settimeout(PATIENCE_S)
    return connection


def test_connections_are_passed_on(port: HAPort) -> None:
    served: list[tuple[socket.socket, str]] = []
    port.on_connected = lambda connection, peer: served.append((connection, peer))
    with connected(port) as peer:
        eventually(lambda: bool(served))
        (taken, address) = served[0]
        assert address == "{}:{}".format(*peer.getsockname())
        taken.sendall(b"x")
        assert peer.recv(1) == b"x"
        taken.close()
    assert port.listens == [f"{HOST}:{port.port}"]


def test_without_a_service_connections_are_closed_with_a_reason(
    port: HAPort, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(port) as peer:
        assert peer.recv(1) == b""
    assert "this broker is not a master" in caplog.text
    for _ in range(2 * BURST):
        with connected(port) as peer:
            assert peer.recv(1) == b""
    assert len(caplog.records) == BURST


def test_a_port_in_use_is_an_error_with_a_remedy(port: HAPort) -> None:
    with pytest.raises(AddressInUseError, match=rf"{HOST}:{port.port}: the HA port .* haListenPo"):
        HAPort(SYSTEM).open(HOST, port.port)


def test_a_failing_service_does_not_close_the_port(
    port: HAPort, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(connection: socket.socket, peer: str) -> None:
        raise RuntimeError("can't start new thread")

    port.on_connected = fail
    for _ in range(2):
        with connected(port) as peer:
            assert peer.recv(1) == b""
    assert caplog.text.count("can't start new thread") >= 2


def test_a_failed_accept_is_retried(port: HAPort, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = HAPort._accept_one
    failures: list[int] = []

    def fail_once(self: HAPort, listener: socket.socket) -> None:
        if not failures:
            failures.append(1)
            raise OSError(24, "Too many open files")
        accept(self, listener)

    monkeypatch.setattr("firetrail.replication.ha.ha_port.ERROR_PAUSE_S", 0.01)
    monkeypatch.setattr(HAPort, "_accept_one", fail_once)
    with connected(port) as peer:
        assert peer.recv(1) == b""
    assert failures


def test_all_addresses_of_a_name_have_the_same_port() -> None:
    port = HAPort(SYSTEM)
    port.open("localhost", 0)
    try:
        assert {address.rpartition(":")[2] for address in port.listens} == {str(port.port)}
    finally:
        port.close()
