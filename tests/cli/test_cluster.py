"""The commands that talk to a cluster, with one that ``firetrail up`` has started."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Firetrail
from tests.helpers import PATIENCE_S
from tests.torture.process import free_ports

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker import Broker
from firetrail.broker.config import BrokerConfig
from firetrail.cli import reset, tail
from firetrail.cli import send as send_command
from firetrail.cli.output import human_time
from firetrail.client import Admin, Message, Producer, PullConsumer
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.hosts import Host
from firetrail.format.layout import COMPRESSED
from firetrail.format.recall import decode_handle
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.bodies import SubscriptionGroupConfig, TopicConfig, TopicConfigTable
from firetrail.store.config import StoreConfig
from firetrail.system import SYSTEM

UP = [sys.executable, "-m", "firetrail", "up", "--port", "0", "--namesrv-port", "0"]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster."""
    folder = tmp_path_factory.mktemp("up")
    conf = folder / "broker.conf"
    conf.write_text("mapedFileSizeCommitLog=8388608\nmapedFileSizeConsumeQueue=20000\n")
    command = [*UP, "-c", str(conf), str(folder / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


@contextmanager
def lonely_name_server(topics: TopicConfigTable | None = None) -> Iterator[str]:
    """The address of a name server in a thread, where no broker is running.

    ``topics`` are those of a broker that has registered and is down.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = NameServer(NameServerConfig(listen_port=0))
    if topics is not None:
        server.register_local(cluster="C", name="a", address="127.0.0.1:1", topics=topics)
    port = asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE_S)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


INTERRUPTIBLE = """\
import signal, sys
from firetrail.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # not so where tests run in the background
sys.exit(main())
"""


@contextmanager
def running(*arguments: str, stdin: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command as a process, which ends with the test."""
    command = [sys.executable, "-c", INTERRUPTIBLE, *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": stdin}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


async def send(namesrv: str, body: bytes) -> None:
    async with Producer(namesrv) as producer:
        await producer.send(Message("T", body), order_key="one")


async def serve_again(folder: Path, host: Host, read: Callable[[], str]) -> None:
    """Start a broker at the same address as before; messages sent to it are followed."""
    config = BrokerConfig(ha_listen_port=free_ports(1)[0])  # a client may use the default one
    broker = Broker(
        folder,
        config,
        StoreConfig(store_host=host),
        name_server=NameServerConfig(listen_port=0),
    )
    await broker.start()
    try:
        await send(broker.namesrv, b"after")
        assert (await asyncio.to_thread(read)).endswith("'after'\n")
    finally:
        await broker.stop()


@pytest.fixture
def ask(firetrail: Firetrail, namesrv: str) -> Any:
    """Call a command with the address of the cluster; it must not fail."""

    def run(command: str, *arguments: object) -> Any:
        result = firetrail(command, "--namesrv", namesrv, *arguments)
        assert result.code == 0, result.err
        return result

    return run


async def until_readable(namesrv: str, topic: str, count: int) -> None:
    """Wait until consumers can read this many messages of a topic."""
    async with PullConsumer(namesrv) as consumer:
        queues = await consumer.queues(topic)
        while sum([await consumer.offsets.end(queue) for queue in queues]) < count:
            await asyncio.sleep(0.005)


def settle(namesrv: str, topic: str, count: int) -> None:
    """Wait as ``until_readable`` does. Commands run their own event loop, so tests have none."""
    asyncio.run(until_readable(namesrv, topic, count))


async def commit(namesrv: str, group: str, topic: str, offset: int) -> None:
    """Commit an offset for the queues of a topic that have messages."""
    async with PullConsumer(namesrv, group) as consumer:
        for queue in await consumer.queues(topic):
            if await consumer.offsets.end(queue):
                await consumer.offsets.commit(group, queue, offset)


class TestMessages:
    def test_tail_shows_a_message_as_it_was_sent(self, ask: Any, namesrv: str) -> None:
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

    async def test_tail_shows_bodies_that_cannot_be_decompressed(
        self, ask: Any, namesrv: str
    ) -> None:
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

    def test_every_line_of_standard_input_is_sent(self, namesrv: str) -> None:
        command = [sys.executable, "-m", "firetrail", "send", "Lines", "-n", namesrv]
        result = subprocess.run(command, input=b"a\nb\r\nc", capture_output=True, check=True)
        assert result.stdout.count(b"SEND_OK  broker-a queue") == 3

    def test_the_last_of_each_queue(self, ask: Any, namesrv: str) -> None:
        for number in range(6):
            ask("send", "Last", str(number), "--order-key", "one")
        settle(namesrv, "Last", 6)
        shown = ask("tail", "Last", "--lines", "2").out
        assert [line.split()[-1] for line in shown.splitlines()] == ["'4'", "'5'"]

    def test_tail_follows_new_messages_until_ctrl_c(self, ask: Any, namesrv: str) -> None:
        ask("send", "Follow", "old", "--order-key", "one")
        settle(namesrv, "Follow", 1)
        with running("tail", "Follow", "-f", "-n", namesrv) as process:
            assert process.stdout is not None
            assert process.stdout.readline().endswith("'old'\n")
            ask("send", "Follow", "new", "--order-key", "one")
            assert process.stdout.readline().endswith("'new'\n")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130

    async def test_tail_follows_through_a_restart_of_the_broker(self, tmp_path: Path) -> None:
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

    def test_a_reader_that_leaves(self, ask: Any, namesrv: str) -> None:
        ask("send", "Left", "1", "--order-key", "one")
        settle(namesrv, "Left", 1)
        with running("tail", "Left", "-f", "-n", namesrv) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            ask("send", "Left", "2", "--order-key", "one")
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read() == ""

    def test_an_interrupt_while_no_line_comes(self, namesrv: str) -> None:
        with running("send", "Typed", "-n", namesrv, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("one\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith("SEND_OK")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130

    def test_a_property_without_a_value_is_refused(self, firetrail: Firetrail) -> None:
        result = firetrail("send", "T", "x", "--property", "name")
        assert result.code == 2
        assert "'name' is not NAME=VALUE" in result.err


def test_lag_is_the_distance_from_the_committed_offset(ask: Any, namesrv: str) -> None:
    for number in range(5):
        ask("send", "Lag", str(number), "--order-key", "one")
    settle(namesrv, "Lag", 5)
    asyncio.run(commit(namesrv, "G", "Lag", 3))
    result = ask("lag", "G", "Lag", "--json").lines
    assert sum(line["lag"] for line in result) == 2
    assert ask("lag", "G", "Lag").out.splitlines()[-1].split() == ["total", "5", "2"]
    assert [line["topic"] for line in ask("lag", "G", "--json").lines] == ["Lag"] * len(result)


def test_a_group_beyond_the_end(ask: Any, namesrv: str) -> None:
    """Its lag is not negative, and the reason is said."""
    ask("group", "create", "GB")
    ask("send", "Beyond", "1", "--order-key", "one")
    settle(namesrv, "Beyond", 1)
    asyncio.run(commit(namesrv, "GB", "Beyond", 1152))
    result = ask("lag", "GB", "Beyond", "--json").lines
    assert sorted((line["lag"], line["ahead"]) for line in result)[-1] == (0, 1151)
    *_, total, reason = ask("lag", "GB", "Beyond").out.splitlines()
    assert total.split() == ["total", "1", "0"]
    assert "GB is 1151 beyond the end; the queue became shorter" in reason
    assert "'firetrail reset GB Beyond last' sets it back" in reason
    ask("reset", "GB", "Beyond", "last")
    assert "beyond" not in ask("lag", "GB", "Beyond").out


def test_watched_lag_is_printed_until_ctrl_c(ask: Any, namesrv: str) -> None:
    """The lag is printed repeatedly, with the time; Ctrl-C ends it by the shell's convention."""
    ask("topic", "create", "Watched", "--queues", "1")
    ask("group", "create", "GW")
    with running("lag", "GW", "Watched", "--watch", "-n", namesrv) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(6)]
        assert [line.split()[0] for line in shown[1:3]] == ["TOPIC", "Watched"]
        assert shown[0].endswith("Z\n") and shown[4:] == [shown[4], shown[1]]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_topics_are_created_shown_and_deleted(ask: Any, namesrv: str) -> None:
    assert ask("topic", "create", "Made", "--queues", "3").out == "Made: 3 queues\n"
    assert "Made" in ask("topic", "list").out.splitlines()
    ask("send", "Made", "x")
    settle(namesrv, "Made", 1)
    rows = ask("topic", "--json", "show", "Made").lines
    assert [(row["broker"], row["queue_id"]) for row in rows] == [("broker-a", n) for n in range(3)]
    assert sum(row["max_offset"] for row in rows) == 1
    assert ask("topic", "show", "Made").out.splitlines()[0].split()[:2] == ["BROKER", "QUEUE"]
    assert ask("topic", "show", "Made", "--json").lines == rows  # also after the action
    assert ask("topic", "--json", "delete", "Made").json == {"topic": "Made", "deleted": True}
    assert "Made" not in ask("topic", "--json", "list").out


def test_types_of_topics_are_set_and_shown(ask: Any) -> None:
    ask("topic", "create", "Ordered", "--queues", "2", "--type", "fifo")
    ask("topic", "create", "Untyped", "--queues", "1")
    lines = [line.split() for line in ask("topic", "list").out.splitlines()]
    assert ["Ordered", "FIFO"] in lines and ["Untyped"] in lines
    listed = ask("topic", "list", "--json").json
    assert {"topic": "Ordered", "type": "FIFO"} in listed
    assert {"topic": "Untyped", "type": None} in listed
    assert ask("topic", "show", "Ordered").out.splitlines()[1].split()[-1] == "FIFO"
    assert [row["type"] for row in ask("topic", "show", "Ordered", "--json").lines] == ["FIFO"] * 2
    assert [row["type"] for row in ask("topic", "show", "Untyped", "--json").lines] == [None]
    ask("topic", "create", "Ordered", "--queues", "2")  # a change of the queues keeps the type
    assert ask("topic", "show", "Ordered", "--json").lines[0]["type"] == "FIFO"


def test_topics_of_a_broker_that_is_down_are_listed(firetrail: Firetrail) -> None:
    with lonely_name_server(TopicConfigTable({"Left": TopicConfig("Left")})) as namesrv:
        result = firetrail("topic", "list", "-n", namesrv)
        assert (result.code, result.out) == (0, "Left\n")
        assert "the types of topics are not shown: 127.0.0.1:1" in result.err


async def group_of(namesrv: str, name: str) -> SubscriptionGroupConfig:
    async with Admin(namesrv) as admin:
        return (await admin.groups())[name]


def listed_groups(ask: Any) -> list[list[str]]:
    return [line.split() for line in ask("group", "list").out.splitlines()]


def test_groups_are_created_shown_and_deleted(ask: Any, namesrv: str) -> None:
    assert ask("group", "create", "Crew", "--retries", "3").out == "Crew: created\n"
    group = asyncio.run(group_of(namesrv, "Crew"))
    assert (group.retry_max_times, group.consume_message_orderly) == (3, False)
    ask("group", "create", "Crew", "--orderly")
    assert asyncio.run(group_of(namesrv, "Crew")).consume_message_orderly
    assert ["Crew", "retries", "16", "orderly"] in listed_groups(ask)
    said = "Crew: retries 16, orderly\nCrew: no member is connected\n"
    assert ask("group", "show", "Crew").out == said
    settings = {"group": "Crew", "retries": 16, "orderly": True}
    settings |= {"may_consume": True, "may_broadcast": True}
    assert ask("group", "show", "Crew", "--json").json == {**settings, "members": []}
    assert settings in ask("group", "list", "--json").json
    assert ask("group", "delete", "Crew").out == "Crew: deleted\n"
    assert "Crew" not in [line[0] for line in listed_groups(ask)]


def test_reset_sets_the_offsets_of_a_group(ask: Any, namesrv: str) -> None:
    for number in range(4):
        ask("send", "Reset", str(number), "--order-key", "one")
    settle(namesrv, "Reset", 4)
    ask("group", "create", "GR")
    assert sum(row["offset"] for row in ask("reset", "GR", "Reset", "last", "--json").lines) == 4
    assert ask("lag", "GR", "Reset").out.split()[-1] == "0"
    assert "OFFSET" in ask("reset", "GR", "Reset", "first").out
    assert ask("lag", "GR", "Reset").out.split()[-1] == "4"


class TestNobody:
    def test_an_unreachable_cluster_is_an_error(self, firetrail: Firetrail) -> None:
        result = firetrail("lag", "G", "T", "--namesrv", "127.0.0.1:1")
        assert result.code == 2
        assert "is a cluster running at 127.0.0.1:1?" in result.err

    def test_an_address_without_a_port_is_refused(self, firetrail: Firetrail) -> None:
        result = firetrail("lag", "G", "T", "--namesrv", "localhost")
        assert result.code == 2
        assert "namesrv = 'localhost': expected HOST:PORT, such as 127.0.0.1:9876" in result.err

    @pytest.mark.parametrize("command", [("tail", "T"), ("send", "T", "x"), ("topic", "show", "T")])
    def test_a_name_server_without_brokers_is_an_error(
        self, firetrail: Firetrail, command: tuple[str, ...]
    ) -> None:
        """The topic may exist as soon as the brokers have registered again."""
        with lonely_name_server() as address:
            result = firetrail(*command, "--namesrv", address)
        assert result.code == 2
        assert "no route to the topic T yet: no broker has registered" in result.err
        assert "no topic 'T'" not in result.err

    def test_an_unknown_topic_is_an_error(self, firetrail: Firetrail, namesrv: str) -> None:
        result = firetrail("tail", "Nothing", "--namesrv", namesrv)
        assert result.code == 2
        assert f"{namesrv}: no topic 'Nothing'; 'firetrail topic list' lists" in result.err

    def test_an_error_suggests_a_similar_topic(
        self, firetrail: Firetrail, ask: Any, namesrv: str
    ) -> None:
        ask("topic", "create", "Parcels")
        result = firetrail("topic", "delete", "parcel", "-n", namesrv)
        assert result.code == 2
        assert "no topic 'parcel'; did you mean Parcels?" in result.err

    @pytest.mark.parametrize(
        "command",
        [
            ("group", "show", "Carriers"),
            ("group", "delete", "Carriers"),
            ("reset", "Carriers", "Held", "first"),
            ("lag", "Carriers", "Held"),
            ("lag", "Carriers"),
        ],
    )
    def test_an_error_suggests_a_similar_group(
        self, firetrail: Firetrail, ask: Any, namesrv: str, command: tuple[str, ...]
    ) -> None:
        ask("topic", "create", "Held")
        ask("group", "create", "Carrier")
        result = firetrail(*command, "-n", namesrv)
        assert (result.code, result.out) == (2, "")
        assert f"{namesrv}: no group 'Carriers'; did you mean Carrier?" in result.err

    def test_a_topic_without_queues_is_refused(self, firetrail: Firetrail) -> None:
        result = firetrail("topic", "create", "T", "--queues", "0")
        assert result.code == 2
        assert "--queues: expected a whole number, at least 1: '0'" in result.err


class TestPlaces:
    @pytest.mark.parametrize(
        ("text", "expected"), [("first", 0), ("last", -1), ("1763199000000", 1763199000000)]
    )
    def test_words_and_numbers_are_read_as_positions(self, text: str, expected: int) -> None:
        assert reset.where(text) == expected

    def test_times_are_read_as_positions(self) -> None:
        assert reset.where("2026-11-15T09:30:00+00:00") == 1794735000000

    def test_other_positions_are_refused(self, firetrail: Firetrail) -> None:
        result = firetrail("reset", "G", "T", "yesterday")
        assert result.code == 2
        assert "'yesterday' is not a time such as 2026-11-15T09:30:00, or ms since" in result.err
        assert "nor first or last" in result.err


class TestDeliveryTimes:
    def test_a_message_that_waits_has_a_recall_handle(self, ask: Any) -> None:
        waiting = ask("send", "Later", "x", "--delay", "1h", "--json").json
        handle = decode_handle(waiting["recall_handle"])
        assert (handle.topic, handle.unique_key) == ("Later", waiting["message_id"])
        due = ask("send", "Later", "x", "--deliver-at", "1763199000000", "--json").json
        assert "recall_handle" not in due  # that time is over
        assert due["queue_offset"] == 0

    def test_a_message_that_waits_has_a_time_instead_of_a_position(self, ask: Any) -> None:
        before_ms = SYSTEM.clock.now_ms()
        waiting = ask("send", "Later", "x", "--delay", "1h", "--json").json
        assert list(waiting) == ["status", "broker", "deliver_at", "message_id", "recall_handle"]
        assert 0 <= waiting["deliver_at"] - before_ms - 3_600_000 <= PATIENCE_S * 1000
        at_ms = before_ms + 3_600_000
        said = ask("send", "Later", "x", "--deliver-at", str(at_ms)).out
        assert f" waits until {human_time(at_ms)}  " in said
        assert "  recall handle " in said
        assert "offset" not in said

    def test_a_message_with_a_delay_level_has_the_level_instead_of_a_position(
        self, ask: Any
    ) -> None:
        delayed = ask("send", "Later", "x", "--delay-level", "18", "--json").json
        assert list(delayed) == ["status", "broker", "delay_level", "message_id"]
        assert delayed["delay_level"] == 18
        said = ask("send", "Later", "x", "--delay-level", "18").out
        assert " waits for delay level 18  " in said

    def test_a_time_too_far_ahead_is_refused_with_the_limit(
        self, firetrail: Firetrail, namesrv: str
    ) -> None:
        result = firetrail("send", "--namesrv", namesrv, "Later", "x", "--delay", "73h")
        assert result.code == 2
        assert "the max delay 259200000ms, which is 3 days; choose an earlier time" in result.err

    @pytest.mark.parametrize(
        ("text", "seconds"), [("250ms", 0.25), ("90s", 90), ("10m", 600), ("2h", 7200)]
    )
    def test_durations_are_numbers_with_units(self, text: str, seconds: float) -> None:
        assert send_command.delay(text).total_seconds() == seconds

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--delay", "5"), "--delay: '5' is not a number with a unit (ms, s, m, h, d)"),
            (("--deliver-at", "noon"), "'noon' is not a time such as 2026-11-15T09:30:00, or ms"),
            (("--deliver-at", "1", "--delay", "1s"), "not allowed with argument --deliver-at"),
        ],
    )
    def test_other_times_are_refused(
        self, firetrail: Firetrail, options: tuple[str, ...], said: str
    ) -> None:
        result = firetrail("send", "T", "x", *options)
        assert result.code == 2 and said in result.err


def test_long_bodies_are_cut(capsys: pytest.CaptureFixture[str], ask: Any, namesrv: str) -> None:
    ask("send", "Long", "x" * 1000)
    settle(namesrv, "Long", 1)
    (line,) = ask("tail", "Long").out.splitlines()
    assert line.endswith("'…") and line.count("x") == tail._PREVIEW
