"""TLS on the ports of a process."""

import asyncio
import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from tests.helpers import PATIENCE_S, ManualClock
from tests.tls.authority import Authority
from tests.tls.peers import Client

from firetrail.errors import ConfigError, ProtocolError
from firetrail.system import System
from firetrail.tls import server_tls
from firetrail.tls.self_signed import self_signed_context
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig, TlsMode
from firetrail.tls.tls_session import HANDSHAKE, TlsSession

DAY_S = 86_400


def ignored() -> None:
    """Drop no connection."""


def served(tls: ServerTls) -> bytes:
    """Return the certificate that a new client sees."""
    session = tls.begin(HANDSHAKE, ignored)
    assert session is not None
    client = Client()
    client.greet(session)
    tls.finished(ignored)
    return client.tls.getpeercert(binary_form=True) or b""


def test_the_first_byte_decides(authority: Authority) -> None:
    certificate, key = authority.issue()
    permissive = ServerTls(TlsConfig(certificate=certificate, key=key))
    assert permissive.mode is TlsMode.PERMISSIVE
    assert permissive.begin(0, ignored) is None
    assert isinstance(permissive.begin(HANDSHAKE, ignored), TlsSession)
    enforcing = ServerTls(TlsConfig(mode="enforcing", certificate=certificate, key=key))
    assert isinstance(enforcing.begin(HANDSHAKE, ignored), TlsSession)
    with pytest.raises(ProtocolError, match="does not use TLS, which this port requires"):
        enforcing.begin(0, ignored)
    disabled = ServerTls(TlsConfig(mode="disabled"))
    assert disabled.begin(0, ignored) is None
    with pytest.raises(ProtocolError, match="uses TLS, which is disabled on this port"):
        disabled.begin(HANDSHAKE, ignored)


def test_a_key_that_others_can_read_is_refused(authority: Authority) -> None:
    certificate, key = authority.issue()
    config = TlsConfig(certificate=certificate, key=key)
    Path(key).chmod(0o644)
    with pytest.raises(ConfigError, match=r"TLS key.*: others can read the secret; run 'chmod 600"):
        ServerTls(config)
    Path(key).chmod(0o600)
    tls = ServerTls(config)
    Path(key).chmod(0o644)
    assert not tls.refresh()  # the previous one remains in use
    Path(key).chmod(0o600)
    assert tls.refresh()


def test_settings_without_tls_give_none(authority: Authority) -> None:
    assert ServerTls.of_config(TlsConfig()) is None
    disabled = ServerTls.of_config(TlsConfig(mode="disabled"))
    assert disabled is not None
    assert disabled.mode is TlsMode.DISABLED
    with pytest.raises(ConfigError, match="TLS certificate = '': give both files"):
        ServerTls.of_config(TlsConfig(mode="enforcing"))


def test_old_protocols_are_refused(authority: Authority) -> None:
    certificate, key = authority.issue()
    context = ServerTls(TlsConfig(certificate=certificate, key=key)).context
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_clients_cannot_begin_another_handshake(authority: Authority) -> None:
    """A renegotiation costs the server more than the client."""
    certificate, key = authority.issue()
    tls = ServerTls(TlsConfig(certificate=certificate, key=key))
    assert tls.context is not None
    for context in (tls.context, self_signed_context()):
        assert context.options & ssl.OP_NO_RENEGOTIATION


def test_the_oldest_handshake_is_dropped(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_tls, "HANDSHAKES_MAX", 2)
    certificate, key = authority.issue()
    tls = ServerTls(TlsConfig(certificate=certificate, key=key))
    dropped: list[int] = []
    drops = [lambda n=n: dropped.append(n) for n in range(5)]
    for drop in drops[:3]:
        tls.begin(HANDSHAKE, drop)
    assert dropped == [0]
    tls.finished(drops[1])
    tls.finished(drops[0])
    tls.begin(HANDSHAKE, drops[3])
    assert dropped == [0]
    tls.begin(HANDSHAKE, drops[4])
    assert dropped == [0, 2]


def test_changed_files_are_used(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "used.pem", tmp_path / "used.key"

    def use(file: str, *, cut: bool = False) -> None:
        issued = authority.issue(file)
        content = Path(issued.certificate).read_bytes()
        certificate.write_bytes(content[: len(content) // 2] if cut else content)
        key.touch(0o600)
        key.write_bytes(Path(issued.key).read_bytes())

    use("first")
    tls = ServerTls(TlsConfig(certificate=str(certificate), key=str(key)))
    first = served(tls)
    assert not tls.refresh()
    use("second")
    with caplog.at_level(logging.INFO):
        assert tls.refresh()
    second = served(tls)
    assert second != first
    use("third", cut=True)
    for _ in range(2):
        assert not tls.refresh()
        assert served(tls) == second
    key.unlink()
    assert not tls.refresh()
    assert served(tls) == second
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert messages[0] == f"the TLS certificate in {certificate} is in use now"
    assert all(m.startswith("the previous TLS certificate remains in use: ") for m in messages[1:])
    use("fourth")
    assert tls.refresh()
    assert served(tls) not in (first, second)


def test_a_certificate_that_expires_is_warned_of_at_the_start_daily_and_after_a_change(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.issue()
    expired = authority.issue("expired", is_expired=True)
    end = x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_after_utc
    clock = ManualClock(int((end.timestamp() - 31 * DAY_S) * 1000))
    tls = ServerTls(TlsConfig(certificate=certificate, key=key), System(clock=clock))
    assert not tls.refresh()
    assert not caplog.messages
    for _ in range(2):
        clock.advance(int(DAY_S * 1000))
        for _ in range(2):
            assert not tls.refresh()
    assert len(caplog.messages) == 2
    assert set(caplog.messages) == {
        f"the TLS certificate in {certificate} expires on {end:%Y-%m-%d %H:%M:%S} UTC, and "
        "clients refuse an expired one; replace it and its key, which needs no restart "
        "('firetrail up --secure' does so when it starts)"
    }
    caplog.clear()
    Path(certificate).write_bytes(Path(expired.certificate).read_bytes())
    Path(key).write_bytes(Path(expired.key).read_bytes())
    assert tls.refresh()
    ServerTls(TlsConfig(certificate=certificate, key=key), System(clock=clock))
    told = [each.partition(" on ")[0] for each in caplog.messages]
    assert told == [f"the TLS certificate in {certificate} has expired"] * 2


def test_the_certificate_in_use_is_warned_of_if_the_new_files_cannot_be_used(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.issue("old", is_expired=True)
    new = authority.issue("new")
    trust = tmp_path / "trust.pem"
    trust.write_bytes(Path(authority.trust).read_bytes())
    config = TlsConfig(certificate=certificate, key=key, trust=str(trust), client_auth="require")
    clock = ManualClock(int(datetime.now(UTC).timestamp() * 1000))
    tls = ServerTls(config, System(clock=clock))
    Path(certificate).write_bytes(Path(new.certificate).read_bytes())
    Path(key).write_bytes(Path(new.key).read_bytes())
    trust.write_text("garbage")
    assert not tls.refresh()
    caplog.clear()
    clock.advance(int(DAY_S * 1000))
    assert not tls.refresh()
    told = [each.partition(" on ")[0] for each in caplog.messages]
    assert told == [f"the TLS certificate in {certificate} has expired"]


def test_a_certificate_that_is_not_valid_yet_is_warned_of(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.issue()
    begin = x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_before_utc
    clock = ManualClock(int(begin.timestamp() * 1000) - 1)
    tls = ServerTls(TlsConfig(certificate=certificate, key=key), System(clock=clock))
    assert caplog.messages == [
        f"the TLS certificate in {certificate} is not valid before {begin:%Y-%m-%d %H:%M:%S} UTC, "
        "and clients refuse it until then; set the clock of this machine, or replace the "
        "certificate and its key, which needs no restart"
    ]
    clock.advance(int(DAY_S * 1000))
    assert not tls.refresh()
    assert len(caplog.messages) == 1


async def test_a_failed_look_at_the_files_is_logged(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.issue()
    tls = ServerTls(TlsConfig(certificate=certificate, key=key))

    def fail() -> bool:
        raise MemoryError("no memory")

    monkeypatch.setattr(tls, "refresh", fail)
    monkeypatch.setattr(server_tls, "RELOAD_S", 0.0)
    tls.poll()
    async with asyncio.timeout(PATIENCE_S):
        while not caplog.records:
            await asyncio.sleep(0.001)
    (record,) = caplog.records
    assert record.getMessage() == "the files of TLS could not be checked; will retry"


def test_users_of_client_certificates(authority: Authority) -> None:
    certificate, key = authority.issue()
    config = TlsConfig(
        certificate=certificate,
        key=key,
        client_auth="optional",
        trust=authority.trust,
        user_names="CN:*",
    )
    tls = ServerTls(config)
    for user in ("alice", None):
        context = ssl.create_default_context(cafile=authority.trust)
        context.check_hostname = False
        if user is not None:
            context.load_cert_chain(*authority.issue(user))
        session = tls.begin(HANDSHAKE, ignored)
        assert session is not None
        Client(context).greet(session)
        assert tls.user_of(session) == user


def test_a_context_that_is_not_in_files_is_never_replaced(authority: Authority) -> None:
    certificate, key = authority.issue()
    context = ServerTls(TlsConfig(certificate=certificate, key=key)).context
    assert context is not None
    tls = ServerTls.of_context(context)
    assert tls.mode is TlsMode.PERMISSIVE
    assert not tls.refresh()
    assert tls.context is context
