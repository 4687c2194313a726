"""Servers that clients on other machines can reach need access control."""

from pathlib import Path

import pytest
from tests.tls.authority import Authority

from firetrail.errors import ConfigError
from firetrail.remoting.servers.exposure import check_exposure, is_loopback
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig


class FakeGuard:
    """A guard that checks signatures, and perhaps permissions."""

    def __init__(self, *, checks_permissions: bool) -> None:
        self.checks_permissions = checks_permissions


GUARD = FakeGuard(checks_permissions=True)


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        *(("127.0.0.1", True), ("127.77.0.9", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("10.0.0.5", False), ("fe80::1%eth0", False)),
        *(("broker-a", False), ("localhost.example.org", False), ("", False)),
    ],
)
def test_only_addresses_of_the_machine_are_loopback(bind: str, expected: bool) -> None:
    assert is_loopback(bind) is expected


def test_an_exposed_server_needs_access_control_or_a_word() -> None:
    with pytest.raises(ConfigError, match=r"bind = '0\.0\.0\.0': .* with --insecure"):
        check_exposure("0.0.0.0", None, None, insecure=False)
    check_exposure("0.0.0.0", None, None, insecure=True)
    check_exposure("127.0.0.1", None, None, insecure=False)


def test_signatures_without_tls_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    check_exposure("127.0.0.1", None, GUARD, insecure=False)
    assert not caplog.records
    check_exposure("10.0.0.5", None, GUARD, insecure=False)
    (record,) = caplog.records
    assert "listens on 10.0.0.5 without enforcing TLS" in record.getMessage()
    assert "set --tls-mode enforcing, or tls.server.mode=enforcing in the file of --tls-config" in (
        record.getMessage()
    )


def test_the_servers_of_one_guard_do_not_repeat_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    guard = FakeGuard(checks_permissions=False)
    for _ in range(3):
        check_exposure("10.0.0.5", None, guard, insecure=False)
    assert len(caplog.records) == 2
    check_exposure("10.0.0.6", None, guard, insecure=False)
    check_exposure("10.0.0.5", None, FakeGuard(checks_permissions=False), insecure=False)
    assert len(caplog.records) == 6


def test_signatures_without_permissions_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    guard = FakeGuard(checks_permissions=False)
    check_exposure("127.0.0.1", None, guard, insecure=False)
    assert not caplog.records
    check_exposure("10.0.0.5", None, guard, insecure=False)
    message = caplog.records[0].getMessage()
    assert "listens on 10.0.0.5, and every user may send, read and delete everything" in message
    assert "set authorizationEnabled=true" in message


def test_certificates_of_clients_are_access_control(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    required = TlsConfig(
        mode="enforcing",
        client_auth="require",
        certificate=certificate,
        key=key,
        trust=authority.trust,
    )
    check_exposure("0.0.0.0", ServerTls(required), None, insecure=False)
    check_exposure("0.0.0.0", ServerTls(required), GUARD, insecure=False)
    assert not caplog.records
    for weaker in (required.replace(mode="permissive"), required.replace(client_auth="optional")):
        with pytest.raises(ConfigError, match="every client that reaches"):
            check_exposure("0.0.0.0", ServerTls(weaker), None, insecure=False)
