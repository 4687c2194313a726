"""Reasons of lost connections: every request learns the same one, whatever happens first.

A client of TLS 1.3 has finished its handshake when the server refuses its certificate. So the alert
arrives before, between or after the steps of a request, and a write may fail before it is read.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest
from tests.tls.authority import Authority

from firetrail.errors import ProtocolError, TlsError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import encode_frame
from firetrail.tls.client_tls import ClientTls
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig
from firetrail.tls.tls_session import HANDSHAKE, TlsSession

REFUSED = "TLS failed: .*alert unknown ca"
PEER = "192.0.2.7:9876"


class SteppedTransport:
    """The transport of a client. The test says when bytes are read and when the loop learns of a
    loss; what the peer sends in between waits in a socket."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.written = b""
        self._is_closing = False

    def read_into(self, connection: Connection) -> None:
        connection.data_received(self.ours.recv(1 << 16))

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def free(self) -> None:
        self.ours.close()
        self.theirs.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing: the buffer is always empty."""

    def get_extra_info(self, name: str) -> object:
        return self.ours if name == "socket" else ("192.0.2.7", 9876)


@pytest.fixture
def transport() -> Iterator[SteppedTransport]:
    transport = SteppedTransport()
    yield transport
    transport.free()


def connected(transport: SteppedTransport, session: TlsSession | None = None) -> Connection:
    connection = Connection(RemotingClient(), tls=session)
    connection.connection_made(cast(asyncio.Transport, transport))
    return connection


@pytest.fixture
def server(authority: Authority) -> TlsSession:
    """The server's end of TLS. It trusts no client."""
    issued = authority.issue()
    tls = ServerTls(
        TlsConfig(
            mode="enforcing",
            certificate=issued.certificate,
            key=issued.key,
            client_auth="require",
            trust=authority.trust,
        )
    )
    session = tls.begin(HANDSHAKE, lambda: None)
    assert session is not None
    return session


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory) -> TlsSession:
    """The client's end of TLS, with a certificate of a stranger."""
    certificate, key = Authority(tmp_path_factory.mktemp("stranger"), "stranger").issue("alice")
    return ClientTls(insecure=True, certificate=certificate, key=key).session("localhost")


class Refusal:
    """A connection of a client whose certificate the server refuses."""

    def __init__(
        self, transport: SteppedTransport, connection: Connection, server: TlsSession
    ) -> None:
        self.transport = transport
        self.connection = connection
        self._server = server
        self.requests: list[asyncio.Future[RemotingCommand]] = []

    async def begin(self) -> None:
        """Finish the handshake as far as the client can tell."""
        secured = asyncio.ensure_future(self.connection.secure())
        await asyncio.sleep(0)
        self._server.decrypt(self.transport.take())
        self.connection.data_received(self._server.take_output())
        await secured

    async def request(self) -> None:
        self.requests.append(
            asyncio.ensure_future(self.connection.request(RemotingCommand(1), 60.0))
        )
        await asyncio.sleep(0)

    async def write(self) -> None:
        """Let the loop write what was sent."""
        await asyncio.sleep(0)

    async def refuse(self) -> None:
        """Let the server read the certificate; its alert waits in the socket of the client."""
        with suppress(OSError):  # ssl.SSLError
            self._server.decrypt(self.transport.take())
        self.transport.theirs.sendall(self._server.take_output())
        self.transport.theirs.close()

    async def read(self) -> None:
        self.transport.read_into(self.connection)

    async def lose(self) -> None:
        self.connection.connection_lost(None)

    async def fail(self) -> None:
        """Let the loop report that a write has failed."""
        self.connection.connection_lost(BrokenPipeError(32, "Broken pipe"))

    async def reset(self) -> None:
        self.connection.connection_lost(ConnectionResetError(104, "Connection reset by peer"))


@pytest.mark.parametrize(
    "order",
    [
        "request write refuse read lose",
        "request refuse write read lose",
        "request refuse read write lose",
        "refuse request write read lose",
        "refuse request read write lose",
        "refuse read request lose",
        "refuse read lose request",
        "refuse read request lose request",
        "request refuse read lose request",
        "request write refuse fail",
        "request write refuse reset",
        "request refuse write fail request",
        "refuse request write reset request",
        "refuse fail request",
        "refuse reset request",
    ],
)
async def test_every_request_learns_that_the_certificate_was_refused(
    transport: SteppedTransport, client: TlsSession, server: TlsSession, order: str
) -> None:
    refusal = Refusal(transport, connected(transport, client), server)
    await refusal.begin()
    for step in order.split():
        await getattr(refusal, step)()
    assert not refusal.connection.is_usable
    for request in refusal.requests:
        with pytest.raises(TlsError, match=REFUSED) as caught:
            await request
        assert str(caught.value).startswith(PEER)


@pytest.mark.parametrize("loss", [None, BrokenPipeError(32, "Broken pipe")])
async def test_a_handshake_that_fails_in_a_write_names_the_alert(
    transport: SteppedTransport, client: TlsSession, loss: OSError | None
) -> None:
    connection = connected(transport, client)
    secured = asyncio.ensure_future(connection.secure())
    await asyncio.sleep(0)
    if loss is not None:
        transport.theirs.sendall(bytes([0x15, 3, 3, 0, 2, 2, 40]))  # a fatal alert, not read yet
    connection.connection_lost(loss)
    reason = "lost during the TLS handshake" if loss is None else "alert handshake failure"
    for request in (secured, connection.request(RemotingCommand(1), 60.0)):
        with pytest.raises(TlsError, match=reason):
            await request


async def test_answers_that_arrived_before_a_write_failed_are_delivered(
    transport: SteppedTransport,
) -> None:
    connection = connected(transport)
    answered = asyncio.ensure_future(connection.request(RemotingCommand(1), 60.0))
    lost = asyncio.ensure_future(connection.request(RemotingCommand(1), 60.0))
    await asyncio.sleep(0)
    answer = RemotingCommand(1, opaque=1).answer(body=b"stored")
    transport.theirs.sendall(b"".join(encode_frame(answer)))
    connection.connection_lost(BrokenPipeError(32, "Broken pipe"))
    assert (await answered).content == b"stored"
    with pytest.raises(ConnectionResetError, match="the connection was lost") as caught:
        await lost
    assert isinstance(caught.value.__cause__, BrokenPipeError)


@pytest.mark.parametrize("is_lost_before", [False, True])
async def test_a_request_after_bytes_of_another_protocol_names_them(
    transport: SteppedTransport, is_lost_before: bool
) -> None:
    connection = connected(transport)
    connection.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    if is_lost_before:
        connection.connection_lost(None)
    with pytest.raises(ConnectionResetError) as caught:
        await connection.request(RemotingCommand(1), 60.0)
    assert isinstance(caught.value.__cause__, ProtocolError)
