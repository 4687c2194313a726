"""RocketMQ's Java clients of both release lines at work with Firetrail's broker."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.servers import LINES, jars
from interop.stock import WAIT_S, firetrail_up

from firetrail.client import Admin, PullConsumer
from firetrail.format.layout import COMPRESSED

CLIENTS = Path(__file__).parent / "java" / "clients" / "Clients.java"

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
"""The lines that the clients print about received messages, in any order."""


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    """Return the address of a name server with a broker of Firetrail."""
    with firetrail_up(tmp_path) as address:
        yield address


def run(line: str, namesrv: str, scenario: str, *options: str) -> list[list[str]]:
    """Return the lines that the clients print, in their columns."""
    command = ["java", "-XX:TieredStopAtLevel=1", *options, "-cp", jars(line), str(CLIENTS)]
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


@pytest.mark.parametrize("line", LINES)
def test_request_and_reply(line: str, namesrv: str) -> None:
    """With a callback, and waiting where that works.

    5.3.1 and later do not wait: they give up as soon as the request is stored, whatever the
    broker, and say that they have run out of time (apache/rocketmq#9319).
    """
    expected = [["callback", "re: called", "0"]]
    if line == "v4":
        expected.insert(0, ["request", "re: ask", "0"])
    assert run(line, namesrv, f"request-{line}") == expected


@pytest.mark.parametrize(
    ("method", "module", "kind"), [("LZ4", "lz4.frame", 0x100), ("ZSTD", "zstandard", 0x200)]
)
def test_bodies_that_java_has_compressed(method: str, module: str, kind: int, namesrv: str) -> None:
    pytest.importorskip(module)
    run("v5", namesrv, "sends", f"-Drocketmq.message.compressType={method}")

    async def bodies() -> list[bytes]:
        async with Admin(namesrv) as admin, PullConsumer(namesrv, "G") as consumer:
            queues = await admin.queues("JavaSends")
            found = [message for queue in queues async for message in consumer.read(queue)]
            return [m.body for m in found if m.record.sys_flag == COMPRESSED | kind]

    (body,) = asyncio.run(bodies())
    assert body.startswith(b"largeabcde") and len(body) > 4096


SENDS = """\
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

public class Sends {
    public static void main(String[] arguments) throws Exception {
        try (FiretrailBroker broker = new FiretrailBroker()) {
            DefaultMQProducer producer = new DefaultMQProducer("shop");
            producer.setNamesrvAddr(broker.namesrv);
            producer.start();
            System.out.println(producer.send(new Message("T", new byte[1])).getSendStatus());
            producer.shutdown();
        }
    }
}

"""


def test_the_class_in_the_guide_to_testing(tmp_path: Path) -> None:
    guide = Path(__file__).parents[1] / "docs" / "guide" / "testing-with-firetrail.md"
    (shown,) = re.findall(
        r"^```java\n(.*?)^```$", guide.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    source = tmp_path / "Sends.java"
    source.write_text(SENDS + shown)
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars("v4"), str(source)]
    folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, env=environment)
    assert done.stdout.startswith("SEND_OK\n"), done.stderr[-2000:]
