"""``firetrail tail``, at a cluster that ``firetrail up`` has started."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.live_clusters import running, settle, until_readable
from tests.helpers import PATIENCE_S
from tests.ports import free_port

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.cli.clusters import tail
from firetrail.client import Message, Producer
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.layout import COMPRESSED
from firetrail.format.values.hosts import Host
from firetrail.namesrv import NameServerConfig
from firetrail.store.settings.store_config import StoreConfig


async def send(namesrv: str, body: bytes) -> None:
    async with Producer(namesrv) as producer:
        await producer.send(Message("T", body), order_key="one")


async def serve_again(folder: Path, host: Host, read: Callable[[], str]) -> None:
    """Start a broker at the same address as before; messages sent to it are followed."""
    config = BrokerConfig(ha_listen_port=free_port())  # a client may use the default one
    broker = Broker(
        folder, config, StoreConfig(store_host=host), name_server=NameServerConfig(listen_port=0)
    )
    await broker.start()
    try:
        await send(broker.namesrv, b"after")
        assert (await asyncio.to_thread(read)).endswith("'after'\n")
    finally:
        await broker.stop()


def test_tail_shows_a_message_as_it_was_sent(ask: Any, namesrv: str) -> None:
    options = ("--tags", "new", "--key", "k1", "--property", "p=v")
    sent = ask("send", "Mail", "hello", *options, "--json").json
    assert (sent["status"], sent["broker"]) == ("SEND_OK", "broker-a")
    settle(namesrv, "Mail", 1)
    shown = ask("tail", "Mail", "--json").json
    assert shown["message_id"] == sent["message_id"]
    assert shown["body"] == "aGVsbG8="
    properties = shown["properties"]
    assert (properties["TAGS"], properties["KEYS"], properties["p"]) == ("new", "k1", "v")
    assert "new  'hello'" in ask("tail", "Mail").out
    assert ask("tail", "Mail", "--tags", "old").out == ""


async def test_tail_shows_bodies_that_cannot_be_decompressed(ask: Any, namesrv: str) -> None:
    async with Producer(namesrv, "G") as producer:
        queue = (await producer.send(Message("Raw", b"first"))).queue
        items = encode_batch([BatchItem(0, b"raw", b"")])
        await producer.send_encoded("Raw", items, queue=queue, sys_flag=COMPRESSED)
        await producer.send(Message("Raw", b"last"), queue=queue)
    await asyncio.to_thread(settle, namesrv, "Raw", 3)
    lines = (await asyncio.to_thread(ask, "tail", "Raw")).out.splitlines()
    assert [line.split()[4] for line in lines] == ["'first'", "'raw'", "'last'"]
    assert "'raw'  (compressed, cannot be decompressed: it is not valid zlib: " in lines[1]
    shown = await asyncio.to_thread(ask, "tail", "Raw", "--json")
    found = [json.loads(line) for line in shown.out.splitlines()]
    assert ["body_error" in message for message in found] == [False, True, False]


def test_the_last_of_each_queue(ask: Any, namesrv: str) -> None:
    for number in range(6):
        ask("send", "Last", str(number), "--order-key", "one")
    settle(namesrv, "Last", 6)
    shown = ask("tail", "Last", "--lines", "2").out
    assert [line.split()[-1] for line in shown.splitlines()] == ["'4'", "'5'"]


def test_tail_follows_new_messages_until_ctrl_c(ask: Any, namesrv: str) -> None:
    ask("send", "Follow", "old", "--order-key", "one")
    settle(namesrv, "Follow", 1)
    with running("tail", "Follow", "-f", "-n", namesrv) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("'old'\n")
        ask("send", "Follow", "new", "--order-key", "one")
        assert process.stdout.readline().endswith("'new'\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


async def test_tail_follows_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    with BackgroundBroker(tmp_path) as first:
        await send(first.namesrv, b"before")
        await until_readable(first.namesrv, "T", 1)
        following = running("tail", "T", "-f", "-n", first.namesrv)
        process = following.__enter__()
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().endswith("'before'\n")
        host = Host("127.0.0.1", int(first.address.rpartition(":")[2]))
    try:
        assert "retrying until Ctrl-C" in process.stderr.readline()
        await serve_again(tmp_path, host, process.stdout.readline)
    finally:
        following.__exit__(None, None, None)


def test_a_reader_that_leaves(ask: Any, namesrv: str) -> None:
    ask("send", "Left", "1", "--order-key", "one")
    settle(namesrv, "Left", 1)
    with running("tail", "Left", "-f", "-n", namesrv) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        ask("send", "Left", "2", "--order-key", "one")
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""


def test_long_bodies_are_cut(capsys: pytest.CaptureFixture[str], ask: Any, namesrv: str) -> None:
    ask("send", "Long", "x" * 1000)
    settle(namesrv, "Long", 1)
    (line,) = ask("tail", "Long").out.splitlines()
    assert line.endswith("'…") and line.count("x") == tail._PREVIEW
