"""``firetrail replica STORE --of HOST:PORT``."""

import argparse
import asyncio
import json
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from tests.access.actors import ROOT, SECURE
from tests.broker.brokers import SMALL, Talk, talking
from tests.cli.servers.test_up import started
from tests.client.clusters import until
from tests.helpers import PATIENCE_S

from firetrail.broker import BackgroundBroker, Broker, replica_settings
from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.master_settings import AdoptedSettings, adopted_settings
from firetrail.broker.replica.saved_role import SavedRole
from firetrail.cli.main import build_parser, main
from firetrail.cli.replication import replica_follow
from firetrail.cli.replication.replica import spelled_out
from firetrail.cli.replication.replica_follow import _follow, _search, _Watch
from firetrail.errors import ConfigError
from firetrail.format.files.java_properties import parse_properties
from firetrail.format.values.hosts import Host
from firetrail.remoting.connections.remoting_client import RemotingClient, split_address
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.replica.follower_status import FollowerState, FollowerStatus
from firetrail.store.settings.store_config import BrokerRole
from firetrail.store.store import Store
from firetrail.system import SYSTEM


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (["replica", "data", "--of", "h:1"], ["replica", "follow", "data", "--of", "h:1"]),
        (["replica", "--of", "h:1", "data"], ["replica", "follow", "--of", "h:1", "data"]),
        (["replica", "./rewind"], ["replica", "follow", "./rewind"]),
        (["replica", "follow", "data"], ["replica", "follow", "data"]),
        (["replica", "rewind", "data"], ["replica", "rewind", "data"]),
        (["replica", "--help"], ["replica", "--help"]),
        (["replica"], ["replica"]),
        (["info", "data"], ["info", "data"]),
        ([], []),
    ],
)
def test_follow_may_be_left_out(short: list[str], long: list[str]) -> None:
    assert spelled_out(short) == long


def test_a_master_must_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["replica", str(tmp_path / "r"), "--namesrv", "127.0.0.1:1"])
    assert "give the master: --of HOST:PORT, or --namesrv" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_errors_name_the_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with BackgroundBroker() as broker:
        for arguments, said in (
            (["--of", broker.namesrv], f"{broker.namesrv} is the address of a name server, not of"),
            (["--namesrv", broker.namesrv, "--broker", "b"], "knows no broker 'b'"),
        ):
            assert main(["replica", str(tmp_path / "r"), *arguments]) == 2
            assert said in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("text", ["0", "-1", "one"])
def test_the_id_of_a_master_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["replica", str(tmp_path / "r"), "--of", "127.0.0.1:1", "--id", text])
    said = f"argument --id: '{text}': the id of a replica is a whole number, 1 or larger; 0 is the"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "host", "http://127.0.0.1:1", "127.0.0.1:1;127.0.0.1:2"])
def test_an_address_that_is_none_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["replica", str(tmp_path / "r"), "--of", text])
    said = f"argument --of: address = {text!r}: expected HOST:PORT, such as"
    assert said in capsys.readouterr().err


async def test_a_new_replica_waits_for_its_master(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so once. With the file sizes of its master it can start without it later."""
    master = await stopped_master(tmp_path / "m")
    args = argparse.Namespace(store=tmp_path / "r", of=master.address, namesrv=None, json=True)
    searching = asyncio.ensure_future(_search(args, asyncio.Event()))
    said = ""

    def has_said() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return bool(said)

    await until(has_said)
    line = json.loads(said)
    assert (line["state"], line["caught_up"]) == ("waiting", False)
    assert f"the broker of the master does not answer: {master.address}: " in line["error"]
    store = SMALL.replace(store_host=Host(*split_address(master.address)))
    again = Broker(tmp_path / "m", BrokerConfig(ha_listen_port=master.ha_port), store)
    await again.start()
    found = await searching
    await again.stop()
    assert found is not None and found[0] == master.address
    (tmp_path / "r" / "config").mkdir(parents=True)
    found[1].save(SYSTEM, tmp_path / "r")
    capsys.readouterr()
    assert await _search(args, asyncio.Event()) == found
    assert "the replica starts with what it has, and tries again" in capsys.readouterr().err


async def test_a_replica_that_waits_can_be_stopped(tmp_path: Path) -> None:
    args = argparse.Namespace(store=tmp_path / "r", of="127.0.0.1:1", namesrv=None, json=False)
    stop = asyncio.Event()
    searching = asyncio.ensure_future(_search(args, stop))
    await asyncio.sleep(0)
    stop.set()
    assert await searching is None
    assert not (tmp_path / "r").exists()


def status(state: FollowerState, own: int, there: int, error: str = "") -> FollowerStatus:
    return FollowerStatus(state, None, own, there, error, 0)


def test_a_line_is_printed_only_if_it_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replica_follow, "SHOW_S", 0)
    failed = status(FollowerState.FAILED, 0, -1, "the HA port cannot be reached")
    checking = status(FollowerState.CHECKING, 0, -1)
    watch, replica = _Watch(MagicMock(), as_json=False), MagicMock(is_caught_up=False)
    for found in (
        *(checking, failed, checking, failed, failed, checking, failed),
        *(status(FollowerState.FOLLOWING, 0, 2048), status(FollowerState.FOLLOWING, 0, 2048)),
        status(FollowerState.FOLLOWING, 1024, 2048),
        failed,
    ):
        replica.follower.status = found
        watch._look(replica)
    replica.is_caught_up, replica.follower.status = True, status(FollowerState.FOLLOWING, 0, 0)
    watch._look(replica)
    watch._look(replica)
    assert capsys.readouterr().out.splitlines() == [
        "failed: the HA port cannot be reached",
        "following: 0 B of 2.0 KiB",
        "following: 1.0 KiB of 2.0 KiB",
        "failed: the HA port cannot be reached",
        "following: caught up: the master has no messages yet",
    ]


async def test_a_promotion_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replica_follow, "POLL_S", 0)
    async with Broker.running(tmp_path, store=SMALL) as broker:
        for as_json in (False, True):
            watching = asyncio.create_task(_Watch(broker, as_json).run())
            for _ in range(10):
                await asyncio.sleep(0)
            watching.cancel()
    assert capsys.readouterr().out.splitlines() == [
        "promoted: this broker is now the master (ASYNC_MASTER), epoch 0",
        '{"state": "master", "role": "ASYNC_MASTER", "epoch": 0}',
    ]


def test_a_name_that_contradicts_the_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AdoptedSettings({"brokerName": "broker-j"}).save(SYSTEM, tmp_path)
    with BackgroundBroker() as broker:
        follow = "replica", str(tmp_path), "--namesrv", broker.namesrv, "--broker", "nosuch"
        assert main([*follow, "--port", "0"]) == 2
    assert (
        f"{tmp_path} is a replica of broker 'broker-j', not of 'nosuch', which is not found; "
        "follow it with --broker broker-j, or give 'nosuch' another folder"
    ) in capsys.readouterr().err


async def test_an_id_that_another_replica_has_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped(Exception):
        """The replica is not started."""

    async def stop(_: Broker) -> None:
        raise Stopped

    async with talking() as talk:
        config, store = await replica_settings(talk.broker.address)
        config = config.replace(namesrv=talk.broker.namesrv)
        async with Broker.running(tmp_path / "1", config, store) as first:
            while first.address not in await cluster_of(talk):
                await asyncio.sleep(0.01)
            monkeypatch.setattr(Broker, "start", stop)
            arguments = ["--namesrv", talk.broker.namesrv, "--broker", "broker-a", "--port", "0"]
            follow = ["replica", "follow", str(tmp_path / "2"), *arguments]
            for broker_id in "1", "2":
                with pytest.raises(Stopped):
                    await _follow(build_parser().parse_args([*follow, "--id", broker_id]))
    said = capsys.readouterr().err
    assert f"broker broker-a with id 1 is registered at {first.address}; if it is" in said
    assert "with id 2" not in said


class NotStartedError(Exception):
    """A replica was prepared, and is not started."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Awaitable[Broker]]:
    async def start(broker: Broker) -> None:
        raise NotStartedError(broker)

    async def prepare(master: str, *arguments: str) -> Broker:
        follow = ["replica", "follow", str(tmp_path / "copy"), "--of", master, *arguments]
        with monkeypatch.context() as patch, pytest.raises(NotStartedError) as caught:
            patch.setattr(Broker, "start", start)
            await _follow(build_parser().parse_args(follow))
        return caught.value.broker

    return prepare


BEYOND = "--host", "0.0.0.0"


async def test_a_replica_with_access_control_may_listen_everywhere(
    prepared: Callable[..., Awaitable[Broker]], tmp_path: Path
) -> None:
    """Its credentials are in its ``broker.conf``, too."""
    keys = json.dumps({"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key})
    conf = tmp_path / "replica.conf"
    conf.touch(0o600)
    conf.write_text(f"authenticationEnabled=true\ninnerClientAuthenticationCredentials={keys}\n")
    async with talking(config=SECURE) as talk:
        broker = await prepared(talk.broker.address, "-c", str(conf), *BEYOND)
    assert broker.access.guard is not None
    assert (broker.config.bind, broker.config.name) == ("0.0.0.0", talk.broker.config.name)


async def test_a_replica_without_access_control_needs_a_flag_to_listen_everywhere(
    prepared: Callable[..., Awaitable[Broker]],
) -> None:
    async with talking() as talk:
        with pytest.raises(ConfigError, match=r"bind = '0\.0\.0\.0'.*accept it with --insecure"):
            await prepared(talk.broker.address, *BEYOND)
        broker = await prepared(talk.broker.address, *BEYOND, "--insecure")
    assert broker.access.guard is None


async def test_the_master_and_the_command_decide_before_the_file_of_a_replica(
    prepared: Callable[..., Awaitable[Broker]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "replica.conf"
    conf.write_text(
        "brokerName=other\nbrokerId=0\nbrokerRole=SYNC_MASTER\nmapedFileSizeCommitLog=4096\n"
        "listenPort=7\nconnections_per_address=9\nduplicationEnable=true\ngrpcServerPort=8081\n"
    )
    async with talking() as talk:
        broker = await prepared(talk.broker.address, "-c", str(conf), "--id", "3")
    config, store = broker.config, broker._store_config
    assert (config.name, config.broker_id) == (talk.broker.config.name, 3)
    assert (store.role, store.store_host.port) == (BrokerRole.SLAVE, 7)
    assert store.commit_log_file_size == SMALL.commit_log_file_size
    assert config.connections_per_address == 9
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"firetrail: {conf} line 1: brokerName has no effect: a replica has that of its master",
        f"firetrail: {conf} line 2: brokerId has no effect: the command makes the broker a "
        "replica, with --id",
        f"firetrail: {conf} line 3: brokerRole has no effect: the command makes the broker a "
        "replica, with --id",
        f"firetrail: {conf} line 4: mapedFileSizeCommitLog has no effect: a replica has that of "
        "its master",
        f"firetrail: {conf} line 8: grpcServerPort has no effect: a replica has no port for gRPC "
        "clients; run 'firetrail proxy', or 'firetrail broker' after it was promoted",
        f"firetrail: {conf} line 7: duplicationEnable=true has no effect on a replica",
    ]


class StoppedMaster(NamedTuple):
    """The address of a broker that has stopped."""

    address: str
    ha_port: int


async def stopped_master(folder: Path) -> StoppedMaster:
    async with talking(folder) as talk:
        await talk.send("T1", b"one")
        return StoppedMaster(talk.broker.address, talk.broker.config.ha_listen_port)


async def messages_at(broker: str) -> str:
    """Return how many messages a broker serves."""
    client = RemotingClient()
    asked = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "T1", "queueId": "0"})
    answer = await client.ask(broker, asked, PATIENCE_S)
    await client.close()
    return answer.fields["offset"]


async def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(await asyncio.to_thread(process.stdout.readline))
    return line


async def test_a_replica_catches_up_serves_reads_and_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talking() as talk:
        await talk.send("T1", b"one")
        to_master = "--namesrv", talk.broker.namesrv, "--broker", "broker-a"
        arguments = str(tmp_path / "r"), *to_master, "--port", "0", "--id", "2", "--json"
        with started("replica", *arguments) as process:
            found = await next_line(process)
            assert found["master"] == talk.broker.address
            assert found["store"] == str(tmp_path / "r")
            line: dict[str, Any] = {"caught_up": False}
            while not line["caught_up"]:
                line = await next_line(process)
            assert (line["state"], line["lag"], line["error"]) == ("following", 0, "")
            assert await messages_at(found["broker"]) == "1"
            assert found["broker"] in await cluster_of(talk)
            for command in ("info", "dump", "fsck"):
                assert main([command, str(tmp_path / "r")]) == 0
            assert "one" in capsys.readouterr().out
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    with started("replica", *arguments) as process:  # master and name server are down
        found = await next_line(process)
        assert found["master"] == ""
        assert await messages_at(found["broker"]) == "1"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    with Store.open(tmp_path / "r") as store:
        assert [record.body for record in store.read("T1")] == [b"one"]


async def cluster_of(talk: Talk) -> str:
    command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
    return (await talk.client.ask(talk.broker.namesrv, command)).content.decode()


async def test_a_promoted_store_does_not_follow_by_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service manager restarts the command that was used before the promotion."""
    async with talking() as talk:
        config, store = await replica_settings(talk.broker.address)
        async with Broker.running(tmp_path, config, store) as replica:
            await replica.become(BrokerRole.ASYNC_MASTER, 0)
            replica.roles.save(SavedRole("ASYNC_MASTER", 0, "", "SLAVE", 1))
            adopted = await adopted_settings(talk.broker.address)
            adopted.with_name_servers("h:9876").save(SYSTEM, tmp_path)
        of = "--of", talk.broker.address
        assert main(["replica", str(tmp_path), *of, "--port", "10999"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} was promoted to ASYNC_MASTER and may be the master of others" in said
    assert f"run 'firetrail replica rewind {tmp_path} --of HOST:PORT'" in said
    conf = parse_properties(said.partition("broker.conf:\n")[2].rpartition("To make")[0])
    loaded = load_entries(conf)
    assert loaded.broker.replace(master_address="") == BrokerConfig(namesrv="h:9876")
    assert loaded.store.role is BrokerRole.ASYNC_MASTER
    assert loaded.store.store_host.port == 10999
    assert loaded.store.commit_log_file_size == SMALL.commit_log_file_size


async def test_the_names_of_a_master_are_saved_when_its_log_is_known_to_be_the_same(
    tmp_path: Path,
) -> None:
    saved: list[str] = []

    async def follow(talk: Talk, name: str, state: FollowerState) -> None:
        config, store = await replica_settings(talk.broker.address)
        async with Broker.running(tmp_path, config, store) as broker:
            replica = broker.replica
            assert replica is not None
            replica.when_known(lambda: saved.append(name))
            await until(lambda: replica.follower.status.state is state)
            await until(lambda: broker.store.log_range[1] > 0)

    async with talking() as first, talking() as second:
        await first.send("T1", b"first")
        await second.send("T1", b"second")
        await follow(first, "first", FollowerState.FOLLOWING)
        await follow(second, "second", FollowerState.DIVERGED)
    assert saved == ["first"]


def test_the_lag_behind_a_master_that_does_not_answer_is_unknown() -> None:
    status = FollowerStatus(FollowerState.FAILED, None, 1000, 900, "no answer", 0)
    assert status.lag == -1
    found = json.loads(replica_follow._line(status, True, True))
    assert (found["lag"], found["caught_up"]) == (None, False)
    waiting = FollowerStatus(FollowerState.WAITING, None, 0, 0, "no master is known", 0)
    assert replica_follow._line(waiting, False, True) == "waiting: no master is known"
