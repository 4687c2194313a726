"""Sockets with TLS: both directions at once, large transfers, and the end."""

import os
import socket
import ssl
import threading
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, in_threads
from tests.tls.authority import Authority

from firetrail.tls.client_tls import ClientTls
from firetrail.tls.secure_socket import SecureSocket
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig
from firetrail.tls.tls_session import HANDSHAKE, TlsSession


def pair(folder: Path, client: ClientTls | None = None) -> tuple[SecureSocket, SecureSocket]:
    """Return both ends of a connection after the handshake."""
    authority = Authority(folder)
    issued = authority.issue()
    tls = ServerTls(TlsConfig(certificate=issued.certificate, key=issued.key))
    there = tls.begin(HANDSHAKE, lambda: None)
    assert isinstance(there, TlsSession)
    here = (client or ClientTls(ca=authority.trust)).session("127.0.0.1")
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(PATIENCE_S)
    server, peer = SecureSocket(ends[0], there), SecureSocket(ends[1], here)
    try:
        in_threads(server.open, peer.open)
    except BaseException:
        server.close()
        peer.close()
        raise
    return server, peer


def test_both_sides_write_and_read_at_the_same_time(tmp_path: Path) -> None:
    server, peer = pair(tmp_path)
    content = os.urandom(3 << 20)
    found: dict[str, bytes] = {}

    def write(end: SecureSocket) -> None:
        for at in range(0, len(content), 1 << 18):
            part = memoryview(content)[at : at + (1 << 18)]
            assert end.sendmsg([part[:10], part[10:]]) == len(part)

    def read(name: str, end: SecureSocket) -> None:
        buffer, data = memoryview(bytearray(1 << 16)), b""
        while len(data) < len(content):
            size = end.recv_into(buffer)
            assert size
            data += buffer[:size]
        found[name] = data

    with server, peer:
        in_threads(
            lambda: write(server),
            lambda: write(peer),
            lambda: read("server", server),
            lambda: read("peer", peer),
        )
    assert found == {"server": content, "peer": content}


def test_what_does_not_fit_is_read_next_and_the_end_is_seen(tmp_path: Path) -> None:
    server, peer = pair(tmp_path)
    with server, peer:
        peer.sendall(b"hello world")
        assert server.recv(5) == b"hello"
        buffer = memoryview(bytearray(3))
        assert server.recv_into(buffer) == 3
        assert bytes(buffer) == b" wo"
        assert server.recv(100) == b"rld"
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.recv(1)
        server.settimeout(PATIENCE_S)
        peer.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""
        assert server.recv_into(buffer) == 0


def test_a_shutdown_wakes_a_reader(tmp_path: Path) -> None:
    server, peer = pair(tmp_path)
    with server, peer:
        results: list[bytes] = []
        reader = threading.Thread(target=lambda: results.append(server.recv(1)))
        reader.start()
        server.shutdown(socket.SHUT_RDWR)
        reader.join(PATIENCE_S)
        assert results == [b""]


def test_an_unknown_issuer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    with pytest.raises(ssl.SSLError):
        pair(tmp_path, ClientTls(ca=stranger.trust))
