"""The search for secrets of ``test_canary.py`` in the servers that run in processes of their own.

Name server, broker, replica and proxy get users, credentials, keys with passwords, and a password
for etcd. None of these may be shown by an answer, a log, an error or a command line.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from subprocess import Popen

import pytest
from tests.cli.conftest import Firetrail
from tests.cli.servers.test_up import started
from tests.cli.test_canary import (
    ADMIN,
    CANARY,
    CONF,
    answers_to,
    shown_by,
    texts_of_calls,
    texts_of_requests,
)
from tests.client.clusters import until
from tests.extras import require
from tests.helpers import PATIENCE_S
from tests.replication.fake_etcd import fake_etcd
from tests.tls.authority import Authority

from firetrail.access.user_store import USERS_FILE
from firetrail.auth.credentials import Credentials
from firetrail.broker.broker_conf_file import load_entries
from firetrail.cli.servers import service
from firetrail.client import Access, Admin
from firetrail.errors import FiretrailError
from firetrail.format.files.java_properties import parse_properties
from firetrail.format.names import CONFIG
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.group.etcd_gateway import EtcdAccess, EtcdGateway
from firetrail.system import SYSTEM
from firetrail.tls.tls_config import TlsConfig

PASSWORD = f"{CANARY}-password"
NAMESRV_CONF = "\n".join(
    line for line in CONF.splitlines() if line.startswith(("listen", "auth", "initAuth"))
)


def secret_file(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(0o600)
    path.write_text(text)
    return path


@dataclass
class Servers:
    """Processes, and everything that they show."""

    folder: Path
    authority: Authority
    texts: dict[str, list[str]] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _running: dict[str, Popen[str]] = field(default_factory=dict)

    def tls(self, name: str, password: str = PASSWORD) -> Path:
        """Write a ``tls.properties`` with the passwords of two keys; return its path."""
        server = self.authority.issue(file=f"{name}-server", password=PASSWORD)
        client = self.authority.issue(file=f"{name}-client", password=PASSWORD)
        lines = {
            "tls.server.mode": "permissive",
            "tls.server.certPath": server.certificate,
            "tls.server.keyPath": server.key,
            "tls.server.keyPassword": password,
            "tls.server.need.client.auth": "optional",
            "tls.server.authClient": "true",
            "tls.server.trustCertPath": self.authority.trust,
            "tls.enable": "true",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.authority.trust,
            "tls.client.certPath": client.certificate,
            "tls.client.keyPath": client.key,
            "tls.client.keyPassword": password,
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        return secret_file(self.folder / f"{name}.tls.properties", text)

    def conf(self, name: str, text: str, **more: object) -> Path:
        lines = "".join(f"{key}={value}\n" for key, value in more.items())
        return secret_file(
            self.folder / f"{name}.conf", f"{text}\n{lines}tls.config.file={self.tls(name)}\n"
        )

    def start(self, name: str, *arguments: object, **environment: str) -> dict[str, str]:
        logged = ("--json", "--log-level", "debug", "--log-file", self.log_of(name))
        command = [str(each) for each in (*arguments, *logged)]
        process = self._stack.enter_context(started(*command, **environment))
        self._running[name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=PATIENCE_S)
        self.texts[name] = [line, Path(f"/proc/{process.pid}/cmdline").read_text()]
        found: dict[str, str] = json.loads(line)
        return found

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def stop(self) -> None:
        """Stop the servers, the last one first, and keep what they printed."""
        for name, process in reversed(self._running.items()):
            process.terminate()
            self.texts[name] += process.communicate(timeout=PATIENCE_S)
        self._running.clear()

    def close(self) -> None:
        self._stack.close()

    def check(self, *holders: str) -> None:
        """Check that only files with secrets have them, and that only their owner can read these.

        Args:
            holders: How the paths of these files, below the folder, end.
        """
        shown = {
            name: [text for text in texts if CANARY in text] for name, texts in self.texts.items()
        }
        assert shown == {name: [] for name in self.texts}
        logged = {name: self.log_of(name).read_text().count("\n") for name in self.texts}
        assert {name for name, lines in logged.items() if lines < 5} <= {"proxy"}
        found = {
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and CANARY.encode() in path.read_bytes()
        }
        assert {each for each in found if not each.endswith(holders)} == set()
        assert {end for end in holders if not any(each.endswith(end) for each in found)} == set()
        assert {each for each in found if (self.folder / each).stat().st_mode & 0o077} == set()


@contextmanager
def servers_in(folder: Path, authority: Authority) -> Iterator[Servers]:
    servers = Servers(folder, authority)
    try:
        yield servers
    finally:
        servers.close()


async def refusals_of(namesrv: str) -> list[str]:
    """Ask a name server with wrong credentials; return the errors."""
    texts = []
    for credentials in (Credentials("admin", f"{CANARY}-wrong"), Credentials("eve", CANARY)):
        with pytest.raises(FiretrailError) as caught:
            async with Admin(namesrv, access=Access(credentials)) as admin:
                await admin.masters()
        texts.append(f"{caught.value!r} {caught.value}")
    return texts


@pytest.mark.slow
@pytest.mark.time_limit(180)
async def test_processes_of_a_cluster_show_no_secret(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    require("grpc", "google")
    caplog.set_level(logging.DEBUG)
    inner = {"accessKey": "admin", "secretKey": ADMIN.secret_key}
    credentials = {"innerClientAuthenticationCredentials": json.dumps(inner)}
    own = "\n".join(line for line in CONF.splitlines() if not line.startswith("inner"))
    with servers_in(tmp_path, authority) as servers:
        kv = tmp_path / "kv" / "kvConfig.json"
        settings = {"users_folder": tmp_path / "names", "kvConfigPath": kv}
        conf = servers.conf("namesrv", NAMESRV_CONF, **settings)
        namesrv = servers.start("namesrv", "namesrv", "-c", conf)["name_server"]
        conf = servers.conf("broker", own, namesrvAddr=namesrv, **credentials)
        store = tmp_path / "store"
        broker = servers.start("broker", "broker", store, "-c", conf)["broker"]
        conf = servers.conf("replica", own, **credentials)
        options = ("--of", broker, "--namesrv", namesrv, "--port", 0)
        replica = servers.start("replica", "replica", tmp_path / "copy", *options, "-c", conf)
        copytree(store / CONFIG, tmp_path / "proxy" / CONFIG, ignore=only_users)
        own_key = {
            "FIRETRAIL_ACCESS_KEY": "admin",
            "FIRETRAIL_SECRET_KEY_FILE": str(secret_file(tmp_path / "key", ADMIN.secret_key)),
        }
        proxy = servers.start(
            *("proxy", "proxy", "--namesrv", namesrv, "--users", tmp_path / "proxy"),
            *("--port", 0, "--tls-config", servers.tls("proxy")),
            **own_key,
        )
        texts = servers.texts
        texts["proxy"] += texts_of_calls(proxy["grpc"])
        value = RemotingCommand(
            RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}
        )
        texts["namesrv"] += shown_by(await answers_to(namesrv, [value]))
        texts["namesrv"] += await refusals_of(namesrv)
        texts["namesrv"] += await texts_of_requests(namesrv)
        texts["broker"] += await texts_of_requests(broker)
        texts["replica"] += await texts_of_requests(replica["broker"])
        servers.stop()
        assert CANARY not in caplog.text
        servers.check(".conf", ".tls.properties", "key", f"/{USERS_FILE}", f"{USERS_FILE}.bak")
    audited = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("audit/*.log")}
    assert audited == {"names", "store", "copy", "proxy"}
    assert kv.stat().st_mode & 0o777 == 0o600


def only_users(folder: str, names: list[str]) -> list[str]:
    """Return the files of a folder that are not the file of users."""
    return [name for name in names if name != USERS_FILE]


@pytest.mark.slow
@pytest.mark.time_limit(180)
async def test_a_broker_shows_no_password_of_etcd(tmp_path: Path, authority: Authority) -> None:
    with fake_etcd() as etcd, servers_in(tmp_path, authority) as servers:
        etcd.password = PASSWORD
        conf = servers.conf(
            "broker",
            CONF,
            etcd_endpoints=etcd.endpoint().url,
            etcd_user="firetrail",
            etcd_password_file=secret_file(tmp_path / "etcd.password", f"{PASSWORD}\n"),
            ha_member=1,
            ha_lease_s=10,
        )
        broker = servers.start("broker", "broker", tmp_path / "store", "-c", conf)["broker"]
        await until(lambda: bool(etcd.leases))  # the password was right
        servers.texts["broker"] += await texts_of_requests(broker)
        etcd.password, etcd.valid_token = f"{CANARY}-another", "another"
        log = servers.log_of("broker")
        await until(lambda: "etcdserver: authentication failed" in log.read_text())
        servers.texts["broker"] += await texts_of_requests(broker)
        servers.stop()
        users = (f"/{USERS_FILE}", f"{USERS_FILE}.bak")
        servers.check(".conf", ".tls.properties", "etcd.password", *users)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server stop that should not have started."""

    def stopped_later() -> asyncio.Event:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(PATIENCE_S, event.set)
        return event

    monkeypatch.setattr(service, "stop_event", stopped_later)


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("command", ["namesrv", "broker", "replica", "proxy"])
@pytest.mark.parametrize("fault", ["wrong", "readable", "misplaced"])
def test_errors_about_the_password_of_a_key_do_not_show_it(
    tmp_path: Path, authority: Authority, firetrail: Firetrail, command: str, fault: str
) -> None:
    servers = Servers(tmp_path, authority)
    tls = servers.tls(command, f"{CANARY}-wrong" if fault == "wrong" else PASSWORD)
    tls.chmod(0o644 if fault == "readable" else 0o600)
    misplaced = f"tls.server.keyPassword={PASSWORD}\n"
    own = misplaced if fault == "misplaced" else f"tls.config.file={tls}\n"
    conf = secret_file(tmp_path / "server.conf", own)
    arguments: list[object] = ["-c", conf, "--port", 0]
    match command:
        case "broker":
            arguments = [tmp_path / "store", *arguments]
        case "replica":
            arguments = [tmp_path / "store", "--of", "127.0.0.1:1", *arguments]
        case "proxy" if fault != "misplaced":  # its file has no settings of TLS
            arguments = ["--namesrv", "127.0.0.1:1", "--port", 0, "--tls-config", tls]
        case "proxy":
            arguments = ["--namesrv", "127.0.0.1:1", *arguments]
    result = firetrail(command, *arguments)
    assert result.code == 2
    expected = {
        "wrong": "the password is wrong",
        "readable": "others can read the secret",
        "misplaced": "tls.server.keyPassword",
    }
    assert expected[fault] in result.err
    assert CANARY not in result.out + result.err


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(
    ("mode", "error"),
    [
        (0o644, "others can read the secret; run 'chmod 600 "),
        (None, "cannot be read (No such file or directory)"),
    ],
    ids=["readable", "missing"],
)
def test_the_file_with_the_password_of_etcd_must_be_private(
    tmp_path: Path, firetrail: Firetrail, mode: int | None, error: str
) -> None:
    password = tmp_path / "etcd.password"
    if mode is not None:
        secret_file(password, PASSWORD).chmod(mode)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"etcd_endpoints=127.0.0.1:1\nha_member=1\netcd_user=firetrail\n"
        f"etcd_password_file={password}\n"
    )
    result = firetrail("broker", tmp_path / "store", "-c", conf, "--port", 0)
    assert result.code == 2
    assert f"etcd_password_file = '{password}'" in result.err
    assert error in result.err
    assert CANARY not in result.out + result.err


def test_texts_of_settings_show_no_password(tmp_path: Path, authority: Authority) -> None:
    servers = Servers(tmp_path, authority)
    tls, _ = TlsConfig.from_file(str(servers.tls("one")))
    etcd = EtcdAccess(("127.0.0.1:1",), user="firetrail", password=PASSWORD)
    loaded = load_entries(parse_properties(CONF, "broker.conf"))
    texts = [repr(each) for each in (tls, tls.of_client, etcd, EtcdGateway(etcd, SYSTEM.clock))]
    texts += [repr(loaded), repr(loaded.broker), str(loaded.broker)]
    assert tls.key_password == tls.client_key_password == etcd.password == PASSWORD
    assert [text for text in texts if CANARY in text] == []
