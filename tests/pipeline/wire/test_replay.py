"""Replay to a broker: selected messages, in order, continued after a stop; SQL over a broker."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline.wire.talk import create, received
from tests.stores import records

from firetrail import Message, Store
from firetrail.broker.background import BackgroundBroker
from firetrail.cli.main import main
from firetrail.client import Admin
from firetrail.errors import FiretrailError, StoreError
from firetrail.format.batch import BatchItem, decode_batch, encode_batch
from firetrail.format.layout import COMPRESSED
from firetrail.pipeline.jobs.replay.replay_job import _Replay, _SelectedMessage, replay
from firetrail.pipeline.jobs.replay.targets import BrokerTarget, ReplayPiece
from firetrail.store.inspect.view import StoreView


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    with Store.open(path, small_config()) as store:
        for number in range(60):
            topic = ("orders", "others")[number % 2]
            store.put(Message(topic, b"%d" % number, tags="t", queue_id=number // 2 % 2))
    return path


def piece(*bodies: bytes, topic: str = "T", queue_id: int = 0, sys_flag: int = 0) -> ReplayPiece:
    items = encode_batch([BatchItem(7, body, b"a\x01b\x02") for body in bodies])
    return ReplayPiece(topic, queue_id, items, sys_flag)


class TestTarget:
    """The target itself, without Spark."""

    @pytest.fixture(autouse=True)
    def topic(self, broker: BackgroundBroker) -> None:
        create(broker.namesrv, "T", 2)

    def test_commits_are_sent_and_recorded(self, broker: BackgroundBroker, source: Path) -> None:
        pieces = [piece(b"1", b"2"), piece(b"3", queue_id=1), piece(b"4"), piece(b"5", queue_id=6)]
        with BrokerTarget(broker.namesrv, source, "r") as target:
            assert target.done() == -1
            assert target.commit(100, pieces)
        found = received(broker.namesrv, "T", 5)
        assert [(m.queue.queue_id, m.body) for m in found] == [
            *((0, b"1"), (0, b"2"), (0, b"4"), (0, b"5")),
            (1, b"3"),
        ], "a queue that there is not is one that there is"
        assert {m.record.flag for m in found} == {7}
        assert all(m.properties["a"] == "b" for m in found)
        with BrokerTarget(broker.namesrv, source, "r") as again:
            assert again.done() == 100
            assert again.is_home(broker.address)
        with BrokerTarget(broker.namesrv, source, "other") as other:
            assert other.done() == -1

    def test_compressed_messages_are_sent_one_by_one(
        self, broker: BackgroundBroker, source: Path
    ) -> None:
        """Consumers do not decompress the bodies of batches."""
        bodies = [zlib.compress(b"one"), zlib.compress(b"two")]
        with BrokerTarget(broker.namesrv, source, "r") as target:
            target.commit(1, [piece(*bodies, sys_flag=COMPRESSED)])
        found = received(broker.namesrv, "T", 2)
        assert [m.body for m in found] == [b"one", b"two"]

    def test_an_unreadable_progress_file_is_an_error(
        self, broker: BackgroundBroker, source: Path
    ) -> None:
        with BrokerTarget(broker.namesrv, source, "r"):
            pass
        (mark,) = source.glob("firetrail.replayed.*")
        mark.write_text("{}")
        with pytest.raises(StoreError, match="remove the file to start the replay"):
            BrokerTarget(broker.namesrv, source, "r").__enter__()

    def test_a_source_that_is_not_writable_is_refused(
        self, broker: BackgroundBroker, tmp_path: Path
    ) -> None:
        with pytest.raises(StoreError, match="make the folder writable"):
            BrokerTarget(broker.namesrv, tmp_path / "nowhere", "r").__enter__()


class Killed(BaseException):
    """Simulates the kill of a process."""


@pytest.mark.slow
def test_replay_and_sql(
    spark: SparkSession,
    broker: BackgroundBroker,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    goal = f"namesrv={broker.namesrv}"
    create(broker.namesrv, "orders", 2)
    options: dict[str, Any] = {"where": "topic = 'orders'"}
    assert replay(spark, source, goal, dry_run=True, **options).messages == 30
    monkeypatch.setattr(BrokerTarget, "commit_messages", 7)
    _killed_before_the_note(monkeypatch, lambda: replay(spark, source, goal, **options))
    assert replay(spark, source, goal, **options).messages == 30
    found = received(broker.namesrv, "orders", 37)
    assert len(found) == 37, "seven twice"
    origins = {m.properties["REPLAY_ORIGIN"]: m for m in found}
    chosen = {r.message_id: r for r in records(source) if r.topic == "orders"}
    assert origins.keys() == chosen.keys()
    for origin, message in origins.items():
        record = chosen[origin]
        assert (message.body, message.queue.queue_id) == (record.body, record.queue_id)
        assert message.tags == "t"

    command = ["pipeline", "replay", str(source), "--where", "topic = 'others'", "--to", goal]
    assert main([*command, "--topic", "T", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 30
    assert main([*command, "--topic", "T"]) == 0
    assert capsys.readouterr().out == f"0 messages (0 B) copied to {goal}\n"
    assert main(["fsck", str(source)]) == 0, "the notes are no foreign files"
    capsys.readouterr()

    query = "select topic, count(*) as n from messages where topic in ('T', 'orders') group by 1"
    assert main(["pipeline", "sql", goal, f"{query} order by 1", "--csv"]) == 0
    assert capsys.readouterr().out == "topic,n\nT,30\norders,37\n"
    assert main(["pipeline", "sql", goal, "select count(*) from log"]) == 2
    assert "brokers have only view=queue" in capsys.readouterr().err


def _killed_before_the_note(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    def dies(self: BrokerTarget, number: int) -> None:
        if number > 0:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(BrokerTarget, "_note", dies)
        run()


class Home(BrokerTarget):
    """Brokers that also have the source."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def is_home(self, store_host: str) -> bool:
        self.asked.add(store_host)
        return True


def test_source_and_target_on_the_same_broker_need_a_topic(
    spark: SparkSession, source: Path
) -> None:
    """Copies must not be copied again."""
    found = [_SelectedMessage(record.physical_offset, record.size) for record in records(source)]
    with StoreView.open(source) as view:
        home = Home()
        pieces = [*_Replay(spark, view, "true", "orders", None, "failfast")._pieces(found, home)]
        assert sum(len(decode_batch(piece.items)) for piece in pieces) == 30
        assert {piece.topic for piece in pieces} == {"orders"}
        assert home.asked == {str(record.store_host) for record in records(source)}
        with pytest.raises(StoreError, match=r"name another topic with --topic"):
            list(_Replay(spark, view, "true", None, None, "failfast")._pieces(found, home))


@pytest.mark.parametrize("job", ["archive", "report", "audit", "rebuild"])
def test_jobs_that_need_files_refuse_brokers(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    needed = {"archive": ["--to", "lake"], "report": ["--out", "x.html"]}
    assert main(["pipeline", job, "namesrv=127.0.0.1:1", *needed.get(job, [])]) == 2
    assert "needs the files of a store" in capsys.readouterr().err


def test_a_replay_from_brokers_is_refused(spark: SparkSession) -> None:
    with pytest.raises(FiretrailError, match="with its sink"):
        replay(spark, "namesrv=127.0.0.1:1", None, where="true")


def test_a_target_waits_for_its_broker(
    tmp_path: Path, broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the broker's address, copies in the source itself would not be recognized."""
    answers: list[dict[str, str]] = [{}]
    real = Admin.masters

    async def masters(self: Admin, cluster: str | None = None) -> dict[str, str]:
        return answers.pop() if answers else await real(self, cluster)

    monkeypatch.setattr(Admin, "masters", masters)
    with BrokerTarget(broker.namesrv, tmp_path, "name") as target:
        assert target.is_home(broker.address)
    assert not answers
