"""Credentials and TLS of clients, from environment variables and files."""

from pathlib import Path

import pytest

from firetrail.auth.credentials import Credentials
from firetrail.errors import ConfigError
from firetrail.remoting.connections.access import Access
from firetrail.tls.client_tls import ClientTls

CANARY = "canary-secret"


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_an_empty_environment_is_plain_and_unsigned() -> None:
    assert Access.from_environment({}) == Access()
    assert Access.from_environment({"FIRETRAIL_TLS": "off"}) == Access()


def test_the_environment(tmp_path: Path) -> None:
    keys = {"FIRETRAIL_ACCESS_KEY": "alice", "FIRETRAIL_SECRET_KEY": CANARY}
    expected = Access(Credentials("alice", CANARY))
    assert Access.from_environment(keys) == expected
    file = private(tmp_path / "secret", f"{CANARY}\n")
    keys = {"FIRETRAIL_ACCESS_KEY": "alice", "FIRETRAIL_SECRET_KEY_FILE": file}
    assert Access.from_environment(keys) == expected
    assert CANARY not in repr(expected)


@pytest.mark.parametrize(
    ("variables", "tls"),
    [
        ({"FIRETRAIL_TLS": "on"}, ClientTls()),
        ({"FIRETRAIL_TLS": "ON"}, ClientTls()),
        ({"FIRETRAIL_TLS_CA": "ca.pem"}, ClientTls(ca="ca.pem")),
        ({"FIRETRAIL_TLS": "insecure"}, ClientTls(check_names=False, insecure=True)),
        (
            {"FIRETRAIL_TLS": "verify-ca", "FIRETRAIL_TLS_CA": "ca.pem"},
            ClientTls(ca="ca.pem", check_names=False),
        ),
        (
            {"FIRETRAIL_TLS_CERT": "c.pem", "FIRETRAIL_TLS_KEY": "c.key"},
            ClientTls(certificate="c.pem", key="c.key"),
        ),
        ({"FIRETRAIL_TLS": "off", "FIRETRAIL_TLS_CA": "ca.pem"}, None),
    ],
)
def test_tls_in_the_environment(variables: dict[str, str], tls: ClientTls | None) -> None:
    assert Access.from_environment(variables).tls == tls


def test_wrong_variables(tmp_path: Path) -> None:
    cases = [
        ({"FIRETRAIL_TLS": "yes"}, "FIRETRAIL_TLS = 'yes': must be on, verify-ca, insecure or off"),
        ({"FIRETRAIL_ACCESS_KEY": "alice"}, "FIRETRAIL_SECRET_KEY = '': is missing, but"),
        ({"FIRETRAIL_SECRET_KEY": CANARY}, "FIRETRAIL_ACCESS_KEY = '': is missing, but there is"),
        (
            {"FIRETRAIL_SECRET_KEY": CANARY, "FIRETRAIL_SECRET_KEY_FILE": "x"},
            "FIRETRAIL_SECRET_KEY_FILE = 'x': remove it",
        ),
        ({"FIRETRAIL_SECRET_KEY_FILE": str(tmp_path / "x")}, "cannot be read"),
    ]
    for variables, reason in cases:
        with pytest.raises(ConfigError, match=reason) as caught:
            Access.from_environment(variables)
        assert CANARY not in str(caught.value)


def test_a_file(tmp_path: Path) -> None:
    # The format of RocketMQ's tools.yml is that of properties, too.
    path = private(tmp_path / "tools.yml", f"accessKey: alice\nsecretKey: {CANARY}\n")
    assert Access.from_file(path) == Access(Credentials("alice", CANARY))
    text = f"accessKey=a\nsecretKey={CANARY}\nsecurityToken=t\ntls=on\ntlsCa=ca.pem\n"
    path = private(tmp_path / "access", text)
    assert Access.from_file(path) == Access(Credentials("a", CANARY, "t"), ClientTls(ca="ca.pem"))


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = private(tmp_path / "access", f"accessKey=a\nsecret={CANARY}\n")
    with pytest.raises(ConfigError, match="it has the key 'secret'; the keys are accessKey") as e:
        Access.from_file(path)
    assert CANARY not in str(e.value)
    Path(path).chmod(0o640)
    with pytest.raises(ConfigError, match="others can read the secret; run 'chmod 600"):
        Access.from_file(path)
    path = private(tmp_path / "large", "x" * 70_000)
    with pytest.raises(ConfigError, match="too large for a secret"):
        Access.from_file(path)
