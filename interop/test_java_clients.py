"""RocketMQ's Java clients of both release lines at work with Firetrail's broker."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.servers import LINES, jars

CLIENTS = Path(__file__).parent / "java" / "clients" / "Clients.java"
CONF = """\
listenPort=0
messageDelayLevel=1s 1s 1s 1s 1s
transactionTimeOut=1000
transactionCheckInterval=2000
"""
WAIT_S = 90

SCENARIOS = {
    "sends": [
        *(f"sends batch{n} key4" for n in range(3)),
        "sends sync key1",
        "sends async key2",
        "sends oneway key3",
        "sends delayed key5",
        "sends largeabcde key6",
    ],
    "broadcast": [f"broadcast first{n} {name}" for n in range(4) for name in ("one", "two")],
    "filter": [
        *(f"CGT {n} Odd" for n in (1, 3, 5)),
        *("CGS 2 Even", "CGS 3 Odd", "CGS 4 Even"),
    ],
    "retry": [*(f"retry again JavaRetry{n}" for n in range(3)), "dead again 3"],
    "transaction": [
        "check UNKNOW JavaTransaction",
        "transaction COMMIT_MESSAGE JavaTransaction",
        "transaction UNKNOW JavaTransaction",
    ],
}
"""What the clients print of what they got, in any order."""


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    """The address of a name server, with a broker of Firetrail behind it."""
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    arguments = ["up", str(tmp_path / "store"), "-c", str(conf), "--namesrv-port", "0"]
    command = [sys.executable, "-m", "firetrail.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[2]
        process.terminate()
        assert process.wait(WAIT_S) == 0


def run(line: str, namesrv: str, scenario: str) -> list[list[str]]:
    """The lines that the clients print, in their columns."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars(line), str(CLIENTS)]
    done = subprocess.run(
        [*command, namesrv, scenario], capture_output=True, text=True, timeout=WAIT_S
    )
    assert not done.returncode, done.stderr[-2000:]
    return [text.split("\t") for text in done.stdout.splitlines() if text.count("\t") == 2]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_sent_is_received(line: str, scenario: str, namesrv: str) -> None:
    got = Counter(" ".join(columns) for columns in run(line, namesrv, scenario))
    expected = Counter(SCENARIOS[scenario])
    assert set(got) == set(expected)
    assert got >= expected  # at least once


@pytest.mark.parametrize("line", LINES)
def test_messages_of_a_queue_stay_in_order(line: str, namesrv: str) -> None:
    got = run(line, namesrv, "orderly")
    for queue in range(4):
        bodies = [body for _, body, queue_id in got if queue_id == str(queue)]
        assert bodies == [f"{queue}-{n}" for n in range(10)]


@pytest.mark.parametrize("line", LINES)
def test_lite_pull(line: str, namesrv: str) -> None:
    got = {body for _, body, _ in run(line, namesrv, "lite")}
    assert got == {f"lite{n}" for n in range(10)}


def test_request_and_reply(namesrv: str) -> None:
    assert run("v4", namesrv, "request") == [["request", "re: ask", "0"]]
