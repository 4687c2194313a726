"""``firetrail namesrv``."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Firetrail

from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

COMMAND = [sys.executable, "-m", "firetrail", "namesrv", "--port", "0"]


async def test_it_serves_until_it_is_stopped(tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("rocketmqHome=x\nenableAllTopicList=false\n")
    with subprocess.Popen(
        [*COMMAND, "-c", conf], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        try:
            address = process.stdout.readline().split()[2]
            config = await ask(address, RequestCode.GET_NAMESRV_CONFIG)
            assert b"enableAllTopicList=false" in config.content
        finally:
            process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert process.returncode == 0
    assert said.strip() == (
        f"firetrail: {conf} line 1: rocketmqHome has no effect: "
        "kvConfigPath sets the location of the only file"
    )


async def ask(address: str, code: int) -> RemotingCommand:
    client = RemotingClient()
    try:
        return await client.ask(address, RemotingCommand(code))
    finally:
        await client.close()


def test_a_port_that_is_none(firetrail: Firetrail) -> None:
    result = firetrail("namesrv", "--port", "70000")
    assert result.code == 2
    assert "invalid port value: '70000'" in result.err


def test_a_port_in_use(firetrail: Firetrail) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = firetrail("namesrv", "--port", taken.getsockname()[1])
    assert result.code == 2
    assert "the port is in use; stop the program that listens there" in result.err
