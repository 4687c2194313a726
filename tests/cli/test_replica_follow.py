"""``firetrail replica STORE --of HOST:PORT``."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import Talk, talking
from tests.cli.test_up import started
from tests.helpers import PATIENCE_S

from firetrail.broker import BackgroundBroker, Broker, replica_settings
from firetrail.broker.replica.saved_role import SavedRole
from firetrail.cli.main import main
from firetrail.cli.replica import spelled_out
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import RemotingCommand
from firetrail.store.config import BrokerRole
from firetrail.store.store import Store


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
            (["--of", "127.0.0.1:1"], "the master does not answer: 127.0.0.1:1: cannot be reached"),
            (["--of", "nowhere"], "expected HOST:PORT"),
            (["--namesrv", broker.namesrv, "--broker", "b"], "knows no broker 'b'"),
        ):
            assert main(["replica", str(tmp_path / "r"), *arguments]) == 2
            assert said in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


async def test_a_replica_catches_up_serves_reads_and_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talking() as talk:
        await talk.send("T1", b"one")
        to_master = "--namesrv", talk.broker.namesrv, "--broker", "broker-a"
        arguments = str(tmp_path / "r"), *to_master, "--port", "0", "--id", "2", "--json"
        with started("replica", *arguments) as process:
            assert process.stdout is not None
            lines = process.stdout
            found = await asyncio.to_thread(lambda: json.loads(lines.readline()))
            assert found["master"] == talk.broker.address
            assert found["store"] == str(tmp_path / "r")
            line: dict[str, Any] = {"caught_up": False}
            while not line["caught_up"]:
                line = await asyncio.to_thread(lambda: json.loads(lines.readline()))
            assert (line["state"], line["lag"], line["error"]) == ("following", 0, "")
            client = RemotingClient()
            fields = {"topic": "T1", "queueId": "0"}
            asked = RemotingCommand(RequestCode.GET_MAX_OFFSET, fields)
            answer = await client.ask(found["broker"], asked, PATIENCE_S)
            assert answer.fields["offset"] == "1"
            await client.close()
            assert found["broker"] in await cluster_of(talk)
            for command in ("info", "dump", "fsck"):
                assert main([command, str(tmp_path / "r")]) == 0
            assert "one" in capsys.readouterr().out
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
        of = "--of", talk.broker.address
        assert main(["replica", str(tmp_path), *of]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} was promoted to ASYNC_MASTER and may be the master of others" in said
    assert f"remove {tmp_path / 'config' / 'firetrailRole.json'} and its .bak" in said
