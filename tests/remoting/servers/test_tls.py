"""TLS on the ports of servers, and towards servers, over real sockets on loopback."""

import asyncio
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.connections import connected
from tests.helpers import PATIENCE_S
from tests.tls.authority import Authority, Issued
from tests.tls.key_updates import DeafTransport

from firetrail.auth.credentials import Credentials
from firetrail.auth.signature import Verifier
from firetrail.errors import TlsError
from firetrail.remoting.connections import connection as connection_module
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.servers import acceptor
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameReader, encode_frame
from firetrail.system import SYSTEM
from firetrail.tls import certificates, channel, client_tls, server_tls
from firetrail.tls.client_tls import ClientTls
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig

ECHO, WHO = 1, 2


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(body=request.body)


def who(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(remark=f"{connection.certificate_user} {connection.is_encrypted}")


class Port:
    """A server with TLS, and raw connections to it."""

    def __init__(self, server: RemotingServer, number: int) -> None:
        self.server = server
        self.number = number

    def connected(
        self, context: ssl.SSLContext | None = None
    ) -> AbstractAsyncContextManager[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        name = "localhost" if context is not None else None
        return connected(f"127.0.0.1:{self.number}", tls=context, name=name)

    async def ask(
        self, context: ssl.SSLContext | None, code: int, body: bytes = b""
    ) -> RemotingCommand:
        async with self.connected(context) as (reader, writer):
            writer.write(b"".join(encode_frame(RemotingCommand(code, body=body))))
            frames = FrameReader()
            while True:
                data = await reader.read(1 << 16)
                if not data:
                    raise ConnectionResetError("closed")
                for response in frames.feed(data):
                    return response


@asynccontextmanager
async def serving(config: TlsConfig) -> AsyncIterator[Port]:
    server = RemotingServer({ECHO: echo, WHO: who}, SYSTEM, tls=ServerTls(config))
    number = await server.start("127.0.0.1", 0)
    try:
        yield Port(server, number)
    finally:
        await server.stop(0.1)


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue()


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.trust)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


async def end_of(reader: asyncio.StreamReader) -> None:
    """Wait until the server closes the connection."""
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionResetError):
            await reader.read()


async def test_a_permissive_port_serves_both(issued: Issued, trusting: ssl.SSLContext) -> None:
    async with serving(TlsConfig(certificate=issued.certificate, key=issued.key)) as port:
        body = bytes(range(256)) * 4_000
        for context in (trusting, None):
            assert (await port.ask(context, ECHO, body)).content == body
            assert (await port.ask(context, WHO)).remark == f"None {context is not None}"
        await until(lambda: not port.server.connections)


async def test_an_enforcing_port_closes_plaintext(issued: Issued, trusting: ssl.SSLContext) -> None:
    config = TlsConfig(mode="enforcing", certificate=issued.certificate, key=issued.key)
    async with serving(config) as port:
        assert (await port.ask(trusting, ECHO, b"x")).content == b"x"
        with pytest.raises(ConnectionResetError):
            await port.ask(None, ECHO, b"x")


async def test_a_disabled_port_closes_tls(trusting: ssl.SSLContext) -> None:
    async with serving(TlsConfig(mode="disabled")) as port:
        assert (await port.ask(None, ECHO, b"x")).content == b"x"
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await port.ask(trusting, ECHO, b"x")


async def test_pipelined_requests_and_small_pieces(
    issued: Issued, trusting: ssl.SSLContext
) -> None:
    config = TlsConfig(certificate=issued.certificate, key=issued.key)
    async with serving(config) as port, port.connected(trusting) as (reader, writer):
        data = b"".join(
            b"".join(encode_frame(RemotingCommand(ECHO, body=b"x" * n))) for n in range(300)
        )
        for at in range(0, len(data), 7_777):
            writer.write(data[at : at + 7_777])
        frames, found = FrameReader(), 0
        async with asyncio.timeout(PATIENCE_S):
            while found < 300:
                for response in frames.feed(await reader.read(1 << 16)):
                    assert response.content == b"x" * found
                    found += 1


async def test_a_client_that_ends_tls_is_disconnected(
    issued: Issued, trusting: ssl.SSLContext
) -> None:
    config = TlsConfig(certificate=issued.certificate, key=issued.key)
    async with serving(config) as port, port.connected(trusting) as (_, writer):
        writer.write(b"".join(encode_frame(RemotingCommand(ECHO))))
        writer.close()
        async with asyncio.timeout(PATIENCE_S / 4):  # asyncio waits 30 s for the server's end
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("first", "limit"), [(b"", "FIRST_BYTE_S"), (b"\x16\x03\x01", "HANDSHAKE_S")]
)
async def test_a_client_that_does_not_continue_is_dropped(
    issued: Issued, monkeypatch: pytest.MonkeyPatch, first: bytes, limit: str
) -> None:
    monkeypatch.setattr(channel, limit, 0.0)
    monkeypatch.setattr(acceptor, "SWEEP_S", 0.001)
    async with serving(TlsConfig(certificate=issued.certificate, key=issued.key)) as port:
        async with port.connected() as (reader, writer):
            writer.write(first)
            await end_of(reader)
        await until(lambda: not port.server.connections)


async def test_activemq_cve_2026_39304_a_flood_of_key_updates_is_not_read(
    issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_HIGH", 20_000)
    tls = ServerTls(TlsConfig(certificate=issued.certificate, key=issued.key))
    server = RemotingServer({}, SYSTEM, tls=tls)
    connection = server._new_connection()
    transport = DeafTransport(connection)
    transport.flood(tmp_path / "keys")
    assert 20_000 < len(transport.written) < 21_000
    assert server._budget.strangers == len(transport.written)
    connection.connection_lost(None)


async def test_a_handshake_that_is_lost_keeps_no_memory(issued: Issued) -> None:
    """The collector of garbage may come late, and OpenSSL takes much."""
    tls = ServerTls(TlsConfig(certificate=issued.certificate, key=issued.key))
    connection = Connection(Mock(), tls=tls)
    transport = Mock()
    transport.get_write_buffer_size.return_value = 0
    connection.connection_made(transport)
    connection.data_received(b"\x16\x03\x01\x02\x00\x01\x00")
    assert isinstance(connection._tls, channel.ServerChannel)
    session = connection._tls._session
    assert session is not None
    ssl_object = weakref.ref(session._tls)
    del session
    connection.connection_lost(None)
    assert ssl_object() is None


async def test_too_many_handshakes_drop_the_oldest(
    issued: Issued, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_tls, "HANDSHAKES_MAX", 2)
    config = TlsConfig(certificate=issued.certificate, key=issued.key)
    async with (
        serving(config) as port,
        port.connected() as (first, writer),
        port.connected() as (_, other),
    ):
        writer.write(b"\x16\x03\x01")
        await writer.drain()
        await until(lambda: len(port.server.connections) == 2)
        other.write(b"\x16\x03\x01")
        assert (await port.ask(trusting, ECHO, b"x")).content == b"x"
        assert (await port.ask(trusting, ECHO, b"x")).content == b"x"
        await end_of(first)


@pytest.mark.parametrize("auth", ["optional", "require"])
async def test_client_certificates(authority: Authority, issued: Issued, auth: str) -> None:
    def context(certificate: Issued | None) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=authority.trust)
        if certificate is not None:
            found.load_cert_chain(*certificate)
        return found

    config = TlsConfig(
        certificate=issued.certificate,
        key=issued.key,
        client_auth=auth,
        trust=authority.trust,
        user_names="CN:*",
    )
    async with serving(config) as port:
        assert (await port.ask(context(authority.issue("alice")), WHO)).remark == "alice True"
        expired = context(authority.issue("late", is_expired=True))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await port.ask(expired, WHO)
        if auth == "optional":
            assert (await port.ask(context(None), WHO)).remark == "None True"
        else:
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await port.ask(context(None), WHO)


async def test_a_new_certificate_is_used_while_connections_stay(
    authority: Authority, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "SWEEP_S", 0.001)
    monkeypatch.setattr(server_tls, "RELOAD_S", 0.0)

    def seen(writer: asyncio.StreamWriter) -> bytes:
        return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))

    certificate, key = authority.issue("renewed")
    config = TlsConfig(certificate=certificate, key=key)
    async with serving(config) as port, port.connected(trusting) as (reader, writer):
        authority.issue("renewed")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with port.connected(trusting) as (_, other):
                    if seen(other) != seen(writer):
                        break
        writer.write(b"".join(encode_frame(RemotingCommand(ECHO, body=b"still"))))
        assert b"still" in await reader.read(1 << 16)


# -- clients ----------------------------------------------------------------------------------


@asynccontextmanager
async def client_of(access: Access) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(access=access)
    try:
        yield client
    finally:
        await client.close()


async def test_a_client_verifies_the_server(authority: Authority, issued: Issued) -> None:
    config = TlsConfig(mode="enforcing", certificate=issued.certificate, key=issued.key)
    async with serving(config) as port:
        for host in ("127.0.0.1", "localhost"):
            for tls in (ClientTls(ca=authority.trust), ClientTls(insecure=True)):
                async with client_of(Access(tls=tls)) as client:
                    command = RemotingCommand(ECHO, body=b"x" * 100_000)
                    answer = await client.ask(f"{host}:{port.number}", command)
                    assert answer.content == b"x" * 100_000
        async with client_of(Access()) as client:
            with pytest.raises(ConnectionResetError, match="the connection was lost"):
                await client.ask(f"127.0.0.1:{port.number}", RemotingCommand(ECHO))


async def test_a_certificate_that_is_not_trusted(
    authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    config = TlsConfig(certificate=issued.certificate, key=issued.key)
    access = Access(tls=ClientTls(ca=other.trust))
    async with serving(config) as port, client_of(access) as client:
        with pytest.raises(TlsError, match=r"verify failed: .*; name its issuer in FIRETRAIL"):
            await client.connect(f"127.0.0.1:{port.number}")


async def test_a_certificate_of_another_server(authority: Authority) -> None:
    certificate, key = authority.issue("elsewhere", is_local=False)
    async with serving(TlsConfig(certificate=certificate, key=key)) as port:
        address = f"127.0.0.1:{port.number}"
        async with client_of(Access(tls=ClientTls(ca=authority.trust))) as client:
            with pytest.raises(TlsError, match=r"mismatch.*; FIRETRAIL_TLS=verify-ca"):
                await client.connect(address)
        tls = ClientTls(ca=authority.trust, check_names=False)
        async with client_of(Access(tls=tls)) as client:
            await client.connect(address)


async def test_a_server_without_tls_is_named() -> None:
    access = Access(tls=ClientTls(insecure=True))
    async with serving(TlsConfig(mode="disabled")) as port, client_of(access) as client:
        with pytest.raises(TlsError, match="lost during the TLS handshake; does the server use"):
            await client.connect(f"127.0.0.1:{port.number}")


async def test_a_connection_that_is_lost_before_the_handshake() -> None:
    session = ClientTls(insecure=True).session("localhost")
    connection = Connection(RemotingServer({}, SYSTEM), tls=session)
    connection.connection_lost(None)
    with pytest.raises(TlsError, match="lost during the TLS handshake"):
        await connection.secure()


async def test_a_client_shows_its_certificate(authority: Authority, issued: Issued) -> None:
    config = TlsConfig(
        certificate=issued.certificate,
        key=issued.key,
        client_auth="require",
        trust=authority.trust,
        user_names="CN:*",
    )
    async with serving(config) as port:
        address = f"127.0.0.1:{port.number}"
        certificate, key = authority.issue("bob")
        tls = ClientTls(ca=authority.trust, certificate=certificate, key=key)
        async with client_of(Access(tls=tls)) as client:
            assert (await client.ask(address, RemotingCommand(WHO))).remark == "bob True"
        async with client_of(Access(tls=ClientTls(ca=authority.trust))) as client:
            with pytest.raises(TlsError, match=r"TLS failed: .*certificate required"):
                await client.ask(address, RemotingCommand(WHO))


async def test_requests_are_signed() -> None:
    fields: list[Mapping[str, str]] = []

    def note(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        fields.append(request.fields)
        assert Verifier("canary").accepts(request.fields, request.body)
        return request.answer()

    server = RemotingServer({ECHO: note}, SYSTEM)
    number = await server.start("127.0.0.1", 0)
    async with client_of(Access(Credentials("alice", "canary"))) as client:
        command = RemotingCommand(ECHO, {"b": "1", "a": "2"}, b"body")
        for _ in range(2):  # a request that is sent again is signed again
            await client.ask(f"127.0.0.1:{number}", command)
        await client.tell(f"127.0.0.1:{number}", RemotingCommand(ECHO))
        await until(lambda: len(fields) == 3)
    assert all(each["AccessKey"] == "alice" for each in fields)
    await server.stop(0.1)


async def test_a_client_reads_its_files_in_a_thread(
    authority: Authority, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []

    def load_trust(*arguments: Any) -> None:
        readers.append(threading.get_ident())
        load(*arguments)

    load = certificates.load_trust
    monkeypatch.setattr(client_tls, "load_trust", load_trust)
    async with serving(TlsConfig(certificate=issued.certificate, key=issued.key)) as port:
        client = RemotingClient(access=Access(tls=ClientTls(ca=authority.trust)))
        address = f"127.0.0.1:{port.number}"
        answer = await client.request(address, RemotingCommand(ECHO, body=b"x"))
        assert answer.content == b"x"
        await client.close()
    assert threading.get_ident() not in readers
    assert len(readers) == 1
