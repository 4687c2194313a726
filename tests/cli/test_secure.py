"""``firetrail up --secure``: certificates and a first user, and clients that use them."""

import json
import os
import signal
import ssl
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.cli.servers.test_up import FIRETRAIL, started
from tests.extras import require
from tests.helpers import PATIENCE_S

from firetrail.access.user_store import UserStore
from firetrail.cli.servers.secure_folder import SecureFolder
from firetrail.client import Access, Admin, ClientTls, Credentials, Message, Producer, RequestError
from firetrail.errors import ConfigError, FiretrailError
from firetrail.system import SYSTEM
from firetrail.tls.certificate_issuer import is_usable

require("cryptography", "hpack", "google")

HOSTS = ("localhost", "127.0.0.1")


@contextmanager
def secured(folder: Path) -> Iterator[dict[str, str]]:
    """A server with access control; its addresses."""
    ports = "--port", "0", "--namesrv-port", "0"
    with started("up", "--secure", str(folder), *ports, "--json") as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Firetrail in a shell that has read the file with the environment."""
    line = f". '{folder}/env' && exec \"$@\""
    return subprocess.run(
        ["sh", "-c", line, "sh", *FIRETRAIL, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ,
    )


@pytest.mark.slow
async def test_clients_need_tls_and_credentials(tmp_path: Path) -> None:
    folder = tmp_path / "secure"
    with secured(folder) as found:
        assert (found["secure"], found["store"]) == (str(folder), str(folder / "store"))
        namesrv, tls = found["name_server"], ClientTls(ca=str(folder / "ca.pem"))
        password = (folder / "admin.secret").read_text().strip()
        admin = Access(Credentials("admin", password), tls)
        async with Producer(namesrv, access=admin) as producer:
            assert (await producer.send(Message("T", b"x"))).queue_offset == 0
        for wrong in (
            Access(Credentials("admin", password)),
            Access(None, tls),
            Access(Credentials("admin", "another-password"), tls),
        ):
            with pytest.raises((RequestError, OSError, FiretrailError)):
                async with Admin(namesrv, access=wrong) as client:
                    await client.cluster()
        created = command(folder, "user", "list")
        assert created.stdout.split()[4:7] == ["admin", "Super", "enabled"]
        assert password not in created.stdout + created.stderr
    names = {path.name for path in folder.iterdir()}
    secret = {"ca.key", "server.key", "admin.secret", "tools.yml", "env", "client.properties"}
    assert secret < names
    for path in (folder, *folder.iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    before = {name: (folder / name).read_bytes() for name in secret - {"env"}}
    with secured(folder) as again:
        assert "T" in command(folder, "topic", "list").stdout.split()
        assert again["name_server"] in (folder / "env").read_text()
    assert {name: (folder / name).read_bytes() for name in secret - {"env"}} == before


def test_the_first_start_says_how_to_connect(tmp_path: Path) -> None:
    folder = tmp_path / "with blank"
    ports = "--port", "0", "--namesrv-port", "0"
    with started("up", "--secure", str(folder), *ports) as process:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(15))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    for text in (
        f"  . '{folder}/env'",
        f"-Dtls.enable=true '-Dtls.config.file={folder}/client.properties'",
        f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH='{folder}/ca.pem'",
        "tls_enable=True",
        f"password of the super user admin is in {folder}/admin.secret",
    ):
        assert text in said
    assert (folder / "admin.secret").read_text().strip() not in said


def test_the_certificate_is_issued_again_for_other_hosts(tmp_path: Path) -> None:
    first = SecureFolder(tmp_path, HOSTS)
    files = ("server.pem", "ca.pem", "admin.secret")
    before = {name: first.file(name).read_bytes() for name in files}
    assert is_usable(before["server.pem"], HOSTS, 300)
    assert not is_usable(before["server.pem"], HOSTS, 400)
    assert not is_usable(b"no certificate", HOSTS, 1)
    same = SecureFolder(tmp_path, HOSTS)
    assert {name: same.file(name).read_bytes() for name in files} == before
    moved = SecureFolder(tmp_path, [*HOSTS, "10.0.0.5", "::1"])
    assert moved.file("server.pem").read_bytes() != before["server.pem"]
    assert is_usable(moved.file("server.pem").read_bytes(), ["10.0.0.5", *HOSTS], 1)
    assert moved.file("ca.pem").read_bytes() == before["ca.pem"]
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_verify_locations(str(tmp_path / "server.pem"))
    (tmp_path / "ca.key").unlink()
    SecureFolder(tmp_path, HOSTS)
    with pytest.raises(ConfigError, match=r"ca\.key.*: the file is missing, but the certificate"):
        SecureFolder(tmp_path, ["10.0.0.6"])


@pytest.mark.parametrize("name", ["admin.secret", "server.key", "ca.key"])
def test_secrets_that_others_can_read_are_refused(tmp_path: Path, name: str) -> None:
    folder = SecureFolder(tmp_path, HOSTS)
    folder.file(name).chmod(0o640)
    with pytest.raises(ConfigError, match="others can read the secret; run 'chmod 600") as caught:
        SecureFolder(tmp_path, HOSTS)
    assert folder.admin.secret_key not in str(caught.value)


def test_a_lost_password_is_not_replaced_by_another_one(tmp_path: Path) -> None:
    folder = SecureFolder(tmp_path, HOSTS)
    users = UserStore(SYSTEM, tmp_path / "store")
    users.load()
    users.add_super(folder.admin)
    folder.file("admin.secret").unlink()
    with pytest.raises(ConfigError, match=r"the user admin exists; .*firetrail user update admin"):
        SecureFolder(tmp_path, HOSTS)
    assert not folder.file("admin.secret").exists()


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    SecureFolder(tmp_path, HOSTS)
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match="others can replace the files in it; run 'chmod 700"):
        SecureFolder(tmp_path, HOSTS)
    tmp_path.chmod(0o755)
    SecureFolder(tmp_path, HOSTS)


def test_options_of_tls_are_refused(firetrail: Firetrail, tmp_path: Path) -> None:
    result = firetrail("up", "--secure", tmp_path / "x", "--tls-mode", "permissive", "--port", "0")
    assert result.code == 2
    assert "cannot be combined with options of TLS" in result.err
    assert not (tmp_path / "x").exists()
