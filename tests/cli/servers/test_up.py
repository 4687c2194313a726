"""``firetrail up`` and ``firetrail broker`` as processes: they serve, and stop cleanly."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.helpers import PATIENCE_S

from firetrail import Message, StoreConfig
from firetrail.access.user_store import UserStore
from firetrail.auth.credentials import Credentials
from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.broker_config import BrokerConfig
from firetrail.cli.servers import up
from firetrail.format.files.java_properties import Entry
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.store import Store
from firetrail.system import SYSTEM

FIRETRAIL = [sys.executable, "-m", "firetrail"]
EVERYWHERE = ["--host", "0.0.0.0", "--insecure"]
SEND = {"a": "G", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}


async def ask(address: str, command: RemotingCommand) -> RemotingCommand:
    client = RemotingClient()
    try:
        return await client.ask(address, command, PATIENCE_S)
    finally:
        await client.close()


async def clusters_of(namesrv: str) -> str:
    """Return what a name server answers about clusters."""
    answer = await ask(namesrv, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    return answer.content.decode()


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process with more environment variables, which ends with the test."""
    command, env = [*FIRETRAIL, *arguments], {**os.environ, **environment}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def addresses(process: subprocess.Popen[str], count: int) -> list[str]:
    """The addresses that a command prints when it serves."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count + 1)]
    return re.findall(r"^[a-z ]+  (\d+\.\d+\.\d+\.\d+:\d+)", "".join(lines), re.MULTILINE)


async def test_up_keeps_what_was_sent(tmp_path: Path) -> None:
    ports = "--port", "0", "--namesrv-port", "0"
    with started("up", str(tmp_path / "data"), *ports) as process:
        namesrv, broker = addresses(process, 2)
        await ask(broker, RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, b"hello"))
        route = await ask(
            namesrv, RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"})
        )
        assert broker in route.content.decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    with Store.open(tmp_path / "data") as store:
        assert store.recovery.clean
        assert [record.body for record in store.read("T1")] == [b"hello"]


async def test_a_broker_registers_at_another_name_server_and_leaves(tmp_path: Path) -> None:
    with started("up", "--port", "0", "--namesrv-port", "0") as first:
        namesrv, _ = addresses(first, 2)
        conf = tmp_path / "broker.conf"
        conf.write_text("brokerName=broker-b\nlistenPort=0\n")
        alone = "broker", str(tmp_path / "b"), "--namesrv", namesrv, "-c", str(conf)
        with started(*alone) as second:
            (broker,) = addresses(second, 1)
            clusters = await clusters_of(namesrv)
            assert broker in clusters and "broker-b" in clusters
            second.terminate()
            assert second.wait(PATIENCE_S) == 0
        clusters = await clusters_of(namesrv)
        assert "broker-b" not in clusters
        first.terminate()
        assert first.wait(PATIENCE_S) == 0


def test_keys_without_effect_are_reported(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerNickname=x\nmaxSlaveResendLength=1\nlistenPort=0\n")
    with started("up", "-c", str(conf), "--namesrv-port", "0") as process:
        addresses(process, 2)
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert "brokerNickname is not a key" in said
    assert "maxSlaveResendLength has no effect" in said


@pytest.mark.parametrize("command", ["up", "broker"])
def test_a_misspelt_key_is_refused(firetrail: Firetrail, tmp_path: Path, command: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerNam=x\n")
    result = firetrail(command, tmp_path / "store", "-c", conf)
    assert result.code == 2
    assert f"{conf} line 1: brokerNam is not a key" in result.err
    assert "did you mean brokerName? Correct the key, or remove the line" in result.err


@pytest.mark.parametrize("key", ["initAuthenticationUser", "init_user"])
def test_a_file_with_a_password_that_others_can_read_is_refused(
    firetrail: Firetrail, tmp_path: Path, key: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f'{key}={{"username":"admin","password":"canary-of-a-file"}}\n')
    conf.chmod(0o644)
    result = firetrail("up", tmp_path / "store", "-c", conf)
    assert result.code == 2
    assert f"file with {key}" in result.err
    assert f"run 'chmod 600 {conf}'" in result.err
    assert "canary" not in result.err


def test_the_size_of_an_existing_log_counts(tmp_path: Path) -> None:
    """Not that in broker.conf, which has no effect on it and needs no remark."""
    with Store.open(tmp_path, StoreConfig().for_files(commit_log_file_size=8 << 20)) as store:
        store.put(Message("T", b"x"))
    entries = {"mapedFileSizeCommitLog": Entry("1048576", "broker.conf line 1: ")}
    assert [remark.key for remark in load_entries(entries).remarks] == ["maxMessageSize"]
    loaded = load_entries(up._for_existing_log(tmp_path, entries))
    assert not loaded.remarks
    assert loaded.store.max_message_size == StoreConfig().max_message_size
    assert up._for_existing_log(tmp_path / "new", entries) == entries


def test_the_name_server_has_the_limits_of_the_broker() -> None:
    broker = BrokerConfig(bind="::1", max_connections=7, connections_per_address=3)
    config = up._name_server(broker, 1234)
    assert (config.bind_address, config.listen_port) == ("::1", 1234)
    assert (config.max_connections, config.connections_per_address) == (7, 3)


@pytest.mark.parametrize("command", ["up", "broker"])
def test_it_does_not_pretend(tmp_path: Path, command: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("duplicationEnable=true\nlistenPort=0\n")
    arguments = [command, str(tmp_path / "data"), "-c", str(conf)]
    with started(*arguments) as process:
        assert process.wait(PATIENCE_S) == 2
        assert process.stderr is not None
        said = process.stderr.read()
    assert "duplicationEnable=true: Firetrail does not support this; messages are" in said
    assert "has no effect" not in said
    assert "to start without it: --ignore-unsupported duplicationEnable" in said
    assert not (tmp_path / "data").exists()


def test_it_starts_without_if_told_so(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("duplicationEnable=true\nlistenPort=0\n")
    ignored = "--ignore-unsupported", "duplicationEnable"
    arguments = "up", "-c", str(conf), "--namesrv-port", "0", *ignored
    with started(*arguments) as process:
        addresses(process, 2)
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert "WARNING: " in said
    assert "duplicationEnable=true is IGNORED" in said


def test_the_name_server_is_printed_with_the_address_that_it_listens_on(tmp_path: Path) -> None:
    """The advertised address is the broker's; nothing listens there."""
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerIP1=10.9.8.7\nlistenPort=0\n")
    with started("up", "-c", str(conf), "--namesrv-port", "0", "--host", "127.0.0.1") as process:
        namesrv, broker = addresses(process, 2)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert namesrv.startswith("127.0.0.1:")
    assert broker.startswith("10.9.8.7:")


def test_the_address_to_listen_on_is_advertised(tmp_path: Path) -> None:
    arguments = "--port", "0", "--namesrv-port", "0", "--no-grpc", "--host", "127.0.0.2"
    with started("up", str(tmp_path), *arguments) as process:
        namesrv, broker = addresses(process, 2)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert namesrv.startswith("127.0.0.2:")
    assert broker.startswith("127.0.0.2:")


def test_advertised_addresses_and_listening_ports_are_printed(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerIP1=10.9.8.7\nlistenPort=0\n")
    with started("up", "-c", str(conf), "--namesrv-port", "0", *EVERYWHERE) as process:
        assert process.stdout is not None
        namesrv, broker = process.stdout.readline().split(), process.stdout.readline().split()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert namesrv[2].startswith("10.9.8.7:")
    assert " ".join(namesrv[3:]).startswith("clients connect here; it listens on 0.0.0.0:")
    assert broker[1].startswith("10.9.8.7:")
    port = broker[1].partition(":")[2]
    assert " ".join(broker[2:]) == f"advertised to clients; it listens on 0.0.0.0:{port}"


@pytest.mark.parametrize(
    "arguments",
    [["up", "{}"], ["broker", "{}"], ["namesrv"], ["replica", "{}", "--of", "{master}"]],
    ids=lambda arguments: arguments[0],
)
def test_a_server_is_not_exposed_by_accident(
    firetrail: Firetrail, tmp_path: Path, arguments: list[str]
) -> None:
    with BackgroundBroker() as master:
        given = [each.format(tmp_path / "data", master=master.address) for each in arguments]
        result = firetrail(*given, "--host", "0.0.0.0", "--port", "0")
    assert (result.code, result.out) == (2, "")
    assert (
        "bind = '0.0.0.0': every client that reaches this address could do everything" in result.err
    )
    assert "or accept it with --insecure" in result.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", ["up", "broker"])
def test_a_store_with_users_does_not_become_open_by_accident(
    firetrail: Firetrail, tmp_path: Path, command: str
) -> None:
    UserStore(SYSTEM, tmp_path).add_super(Credentials("root", "secret"))
    result = firetrail(command, str(tmp_path), "--port", "0")
    assert (result.code, result.out) == (2, "")
    assert f"{tmp_path}/config/firetrailUsers.json has 1 user, but access control" in result.err
    assert "or start without it by --ignore-users" in result.err
    with started(command, str(tmp_path), "--port", "0", "--ignore-users", "--json") as process:
        assert process.stdout is not None
        assert "broker" in json.loads(process.stdout.readline())
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


async def test_json_names_addresses_and_folder() -> None:
    with started("up", "--port", "0", "--namesrv-port", "0", "--json") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert list(ready)[:3] == ["name_server", "broker", "store"]
        await clusters_of(ready["name_server"])
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("arguments", "remark"),
    [
        (EVERYWHERE, "but advertises 127.0.0.1, which clients on other machines cannot reach"),
        ([], "no name server is given, so clients cannot find the broker"),
    ],
)
def test_a_broker_that_nobody_finds(tmp_path: Path, arguments: list[str], remark: str) -> None:
    with started("broker", str(tmp_path), "--port", "0", *arguments) as process:
        addresses(process, 1)
        process.terminate()
        assert remark in process.communicate(timeout=PATIENCE_S)[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--namesrv-port", "31112"],
            "port = 31112: its replicas (haListenPort, by default the port of the broker + 1) and "
            "the name server (--namesrv-port) need a port each; choose another one for one of them",
        ),
        (["--grpc-port", "31111"], "port = 31111: the broker (--port, listenPort) and gRPC cli"),
    ],
)
def test_two_servers_cannot_have_the_same_port(
    tmp_path: Path, firetrail: Firetrail, options: list[str], said: str
) -> None:
    result = firetrail("up", tmp_path / "data", "--port", "31111", *options)
    assert result.code == 2
    assert said in result.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("arguments", [["up", "--port", "70000"], ["broker"]])
def test_wrong_arguments_are_usage_errors(arguments: list[str]) -> None:
    done = subprocess.run([*FIRETRAIL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr
