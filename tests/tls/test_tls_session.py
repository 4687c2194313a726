"""TLS in memory."""

import ssl
from unittest.mock import Mock

import pytest
from tests.tls.authority import Authority
from tests.tls.peers import Client

from firetrail.tls.self_signed import self_signed_context
from firetrail.tls.tls_session import TlsSession, reason_of


@pytest.fixture(scope="module")
def context() -> ssl.SSLContext:
    return self_signed_context()


def test_a_session_transports_data(context: ssl.SSLContext) -> None:
    client, session = Client(), TlsSession(context)
    assert not session.is_open
    client.greet(session)
    assert session.is_open
    assert client.tls.selected_alpn_protocol() == "h2"
    text = bytes(range(256)) * 1000
    client.tls.write(text)
    sent = client.outgoing.read()
    found = b"".join(session.decrypt(sent[at : at + 1000]) for at in range(0, len(sent), 1000))
    assert found == text
    session.encrypt(text)
    client.incoming.write(session.take_output())
    found = b""
    while len(found) < len(text):
        found += client.tls.read(1 << 20)
    assert found == text


def test_the_buffers_of_a_session_stay_small(context: ssl.SSLContext) -> None:
    """OpenSSL never gives back what such a buffer has once needed."""
    client, session = Client(), TlsSession(context)
    client.greet(session)
    client.tls.write(bytes(1_000_000))
    incoming = session._incoming = Mock(wraps=session._incoming)
    assert len(session.decrypt(client.outgoing.read())) == 1_000_000
    assert max(len(call.args[0]) for call in incoming.write.call_args_list) <= 16 << 10
    session.encrypt(bytes(1_000_000))
    assert session._outgoing.pending == 0
    assert len(session.take_output()) > 1_000_000
    assert session.take_output() == b""


def test_other_bytes_end_a_session(context: ssl.SSLContext) -> None:
    with pytest.raises(ssl.SSLError):
        TlsSession(context).decrypt(b"\x16\x03\x01\x00\x05hello")


def test_nothing_is_encrypted_after_a_failure(context: ssl.SSLContext) -> None:
    session, client = TlsSession(context), Client()
    client.greet(session)
    session.take_output()
    with pytest.raises(ssl.SSLError):
        session.decrypt(b"\x17\x03\x03\x00\x20" + b"x" * 32)
    with pytest.raises(ssl.SSLError):
        session.encrypt(b"too late")
    assert not session.is_open
    alert = session.take_output()
    session.end()
    assert (len(alert) > 0, session.take_output()) == (True, b"")


def test_the_end_of_the_client_is_no_data(context: ssl.SSLContext) -> None:
    client, session = Client(), TlsSession(context)
    client.greet(session)
    with pytest.raises(ssl.SSLError):
        client.tls.unwrap()  # sends the end, and waits for that of the server
    assert not session.is_ended
    assert session.decrypt(client.outgoing.read()) == b""
    assert session.is_ended


def test_the_end_of_a_session_is_sent(context: ssl.SSLContext) -> None:
    client, session = Client(), TlsSession(context)
    session.end()
    assert session.take_output() == b""
    client.greet(session)
    session.end()
    client.incoming.write(session.take_output())
    assert client.tls.read() == b""


def test_both_sides_of_a_session(context: ssl.SSLContext) -> None:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    client, server = TlsSession(trusting, "localhost"), TlsSession(context)
    data = b""
    while not (client.is_open and server.is_open):
        client.decrypt(data)
        server.decrypt(client.take_output())
        data = server.take_output()
    client.encrypt(b"hello")
    assert server.decrypt(client.take_output()) == b"hello"
    assert server.peer_certificate == {}


def test_reasons_are_short(context: ssl.SSLContext, authority: Authority) -> None:
    strict = ssl.create_default_context(cafile=authority.trust)
    client, server = TlsSession(strict, "localhost"), TlsSession(context)
    client.decrypt(b"")
    server.decrypt(client.take_output())
    with pytest.raises(ssl.SSLError) as caught:
        client.decrypt(server.take_output())
    assert reason_of(caught.value).startswith("certificate verify failed: self-signed cert")
    with pytest.raises(ssl.SSLError) as caught:
        server.decrypt(client.take_output())
    assert "alert unknown ca" in reason_of(caught.value)
