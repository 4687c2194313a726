"""Requests between brokers with access control: Java brokers, a name server and a replica.

A Java broker 5.3.3 has ACL 2.0 and registers at a Firetrail name server that requires signatures.
It is the master of ``firetrail replica``, too.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interop.replicas import (
    HA_CONF,
    NAME,
    TOPIC,
    check_same,
    create_topic,
    log_end,
    offsets_copied,
    routed,
    send_all_kinds,
    send_some,
)
from interop.servers import QUICK_FLAGS, Servers, our_name_server
from interop.stock import WAIT_S, registered
from interop.test_slave_brokers import check_tables, tables
from interop.test_user_commands import ADMIN, INNER, SETTINGS
from tests.cli.replication.test_replica_follow import next_line
from tests.cli.servers.test_up import started
from tests.helpers import PATIENCE_S
from tests.tls.authority import Authority

from firetrail.auth.policies import UserType
from firetrail.cli.main import main
from firetrail.cli.users import passwords
from firetrail.client import Admin
from firetrail.remoting.connections.access import ACCESS_KEY, SECRET_KEY
from firetrail.remoting.wire.codes import RequestCode

LIMIT_S = 300.0
GROUP, READ = "Reading", 5
GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.name
COPIER = ("copier", "the-password-of-copier")
CHANGED = "another-password"
OLD = "old-broker"
"""The user in the certificate of a 4.9 broker, which cannot sign."""
REMEDY = "set innerClientAuthenticationCredentials"
LOGGED = """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{file}</file><encoder><pattern>%m%n%ex</pattern></encoder>
  </appender>
  <logger name="RocketmqBroker" level="warn"><appender-ref ref="file"/></logger>
</configuration>
"""
pytestmark = pytest.mark.time_limit(LIMIT_S)


class Secured(NamedTuple):
    """A name server of Firetrail with users of its own, where a Java broker is registered."""

    namesrv: str
    broker: str
    root: Path
    """The store of the broker."""
    users: Path
    """The folder of the name server."""
    authority: Authority

    def audited(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file of the name server's audit log."""
        path = self.users / "audit" / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def create_users(folder: Path) -> None:
    """Create the users of the name server: brokers may update the cluster, and nothing else."""
    store = ("--store", str(folder))
    with pytest.MonkeyPatch.context() as patch:
        for name, password, *options in (
            (*ADMIN, "--super"),
            (INNER["accessKey"], INNER["secretKey"]),
            (OLD, "no-one-knows-this-one"),
        ):
            patch.setenv(passwords.VARIABLE, password)
            assert main(["user", "create", name, *options, *store]) == 0
        for name in (INNER["accessKey"], OLD):
            policy = ["Cluster:DefaultCluster", "--actions", "Update"]
            assert main(["acl", "create", name, *policy, *store]) == 0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("namesrv")
    create_users(folder)
    authority = Authority(folder)
    certificate, key = authority.issue()
    tls, conf = folder / "tls.properties", folder / "namesrv.conf"
    tls.write_text(
        f"tls.server.mode=permissive\ntls.server.certPath={certificate}\n"
        f"tls.server.keyPath={key}\ntls.server.need.client.auth=optional\n"
        f"tls.server.trustCertPath={authority.trust}\nuser_names=CN:*\n"
    )
    conf.write_text(
        f"authenticationEnabled=true\nauthorizationEnabled=true\nusers_folder={folder}\n"
        f"tls.config.file={tls}\n"
    )
    java = Servers("v5", tmp_path_factory.mktemp("java"), settings=HA_CONF)
    with (
        our_name_server("-c", str(conf)) as namesrv,
        java.broker(namesrv, NAME, signal.SIGKILL, settings=SETTINGS) as broker,
    ):
        yield Secured(namesrv, broker, java.folder / NAME, folder, authority)


@pytest.fixture(autouse=True)
def signing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests of the test itself are signed by the administrator."""
    monkeypatch.setenv(ACCESS_KEY, ADMIN[0])
    monkeypatch.setenv(SECRET_KEY, ADMIN[1])


# -- at the name server -----------------------------------------------------------------------


async def brokers(namesrv: str) -> set[str]:
    """Return the names of all brokers that are registered."""
    async with Admin(namesrv) as admin:
        return set((await admin.cluster()).broker_addr_table)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.1)


async def test_a_java_broker_with_credentials_registers(secured: Secured) -> None:
    """With the one permission that it needs: the name server refuses nothing that it asks."""
    await registered(secured.namesrv)
    assert NAME in await brokers(secured.namesrv)
    (done,) = (line for line in secured.audited("audit.log") if line.get("brokerName") == NAME)
    assert (done["request"], done["outcome"]) == ("REGISTER_BROKER", "done")
    assert done["user"] == INNER["accessKey"]
    assert "denied" not in {line["event"] for line in secured.audited("audit.log")}


class JavaLog(NamedTuple):
    """The log of a Java broker that cannot register, and its place."""

    line: str
    file: str
    text: str


@pytest.mark.parametrize(
    "log",
    [
        JavaLog("v4", "log", "registerBroker Exception"),
        JavaLog("v5", "logs/rocketmqlogs/broker.log", "Failed to register current broker"),
    ],
    ids=lambda log: log.line,
)
async def test_a_java_broker_without_credentials_is_refused(
    secured: Secured, tmp_path: Path, log: JavaLog
) -> None:
    """Both sides say so. A broker 4.9.7 cannot sign at all."""
    java = Servers(log.line, tmp_path)
    (tmp_path / "conf" / "logback_broker.xml").write_text(LOGGED.format(file=tmp_path / "log"))
    name = f"unsigned-{log.line}"

    def refusals() -> list[str]:
        strangers = secured.audited("strangers.log")
        return [each["reason"] for each in strangers if each.get("brokerName") == name]

    def said() -> str:
        return (tmp_path / log.file).read_text()

    with java.broker(secured.namesrv, name, signal.SIGKILL):
        await until(refusals)
        await until(lambda: "username cannot be null" in said())
        assert log.text in said()
        assert name not in await brokers(secured.namesrv)
    assert set(refusals()) == {"username cannot be null."}


async def test_a_java_broker_4_9_registers_with_a_certificate(
    secured: Secured, tmp_path: Path
) -> None:
    certificate, key = secured.authority.issue(OLD)
    flags = (
        *("-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true"),
        *(f"-Dtls.{side}.certPath={certificate}" for side in ("client", "server")),
        *(f"-Dtls.{side}.keyPath={key}" for side in ("client", "server")),
        f"-Dtls.client.trustCertPath={secured.authority.trust}",
    )
    java = Servers("v4", tmp_path, (*QUICK_FLAGS, *flags))
    settings = "useTLS=true\n"
    with java.broker(secured.namesrv, "certified", signal.SIGKILL, settings=settings):
        while "certified" not in await brokers(secured.namesrv):
            await asyncio.sleep(0.1)
    done = [line for line in secured.audited("audit.log") if line.get("brokerName") == "certified"]
    assert {(line["user"], line["outcome"]) for line in done} == {(OLD, "done")}


# -- at the master ----------------------------------------------------------------------------


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """The file with the settings of a replica, which is empty."""
    path = tmp_path / "replica.conf"
    path.touch(0o600)
    return path


@pytest.fixture
def arguments(secured: Secured, conf: Path) -> list[str]:
    """The command of a replica."""
    copy = str(conf.parent / "copy")
    options = ("-c", str(conf), "--port", "0", "--json")
    return ["replica", copy, "--of", secured.broker, *options]


def signed_by(name: str, password: str) -> str:
    """Return the setting of a replica that signs as this user."""
    credentials = {"accessKey": name, "secretKey": password}
    return f"innerClientAuthenticationCredentials={json.dumps(credentials)}\n"


@contextmanager
def running(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a replica without credentials in its environment."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(ACCESS_KEY)
            patch.delenv(SECRET_KEY)
            process = stack.enter_context(started(*arguments))
        yield process


async def caught_up(process: subprocess.Popen[str]) -> str:
    """Wait until a replica has everything of its master; return its address."""
    address = (await next_line(process))["broker"]
    while not (await next_line(process)).get("caught_up"):
        pass
    return str(address)


async def refused(arguments: list[str], reason: str) -> None:
    """Check that a replica does not start, and says why and what to do."""
    with running(arguments) as process:
        _, said = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
    assert process.returncode == 2
    assert reason in said
    assert REMEDY in said


async def test_a_replica_that_signs_copies_everything(
    secured: Secured, arguments: list[str], conf: Path
) -> None:
    namesrv, master = secured.namesrv, secured.broker
    await create_topic(master)
    await routed(namesrv)
    await send_some(namesrv, 100)
    await send_all_kinds(namesrv, big=1)
    async with Admin(namesrv) as admin:
        await admin.create_user(*COPIER, user_type=UserType.SUPER, address=master)
        await admin.create_group(GROUP)
        for queue in await admin.queues(TOPIC):
            await admin.offsets.commit(GROUP, queue, READ)
    conf.write_text(signed_by(*COPIER))
    with running(arguments) as process:
        address = await caught_up(process)
        await offsets_copied(address, GROUP, READ)
        await check_tables(address, master)
        await check_refused_while_following(secured, process, address)
    await refused(arguments, "check signature failed")
    conf.write_text(signed_by(COPIER[0], CHANGED))
    with running(arguments) as process:  # it compares its last record with the master's
        address = await caught_up(process)
        await check_tables(address, master)
        await stopped(process)
    end = await log_end(namesrv, master)
    check_same(secured.root, conf.parent / "copy", 0, end)


async def check_refused_while_following(
    secured: Secured, process: subprocess.Popen[str], replica: str
) -> None:
    """Change the password of a replica that follows: tables are not copied, but the log is."""
    async with Admin(secured.namesrv) as admin:
        await admin.update_user(COPIER[0], password=CHANGED, address=secured.broker)
        await admin.create_group("Later")
    assert process.stderr is not None
    said = ""
    while "cannot be copied" not in said:
        said = await asyncio.to_thread(process.stderr.readline)
    assert "check signature failed" in said
    assert REMEDY in said
    await send_some(secured.namesrv, 10, "later")
    end = await log_end(secured.namesrv, secured.broker)
    while await log_end(secured.namesrv, replica) < end:
        await asyncio.sleep(0.1)
    assert "Later" not in (await tables(replica))[GROUPS]
    shown = subprocess.run(
        [sys.executable, "-m", "firetrail", "replica", "status", replica],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "not copied: topics, offsets, delays, groups" in shown.stdout, shown
    await stopped(process)


async def stopped(process: subprocess.Popen[str]) -> None:
    """Stop a replica that follows."""
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0


async def test_a_replica_without_credentials_does_not_start(
    arguments: list[str], conf: Path
) -> None:
    await refused(arguments, "username cannot be null")
    conf.write_text(signed_by("nobody", "the-password-of-nobody"))
    await refused(arguments, "User:nobody is not found")
    assert not (conf.parent / "copy").exists()
