"""The replay job: selected messages are copied once, however often it is run or killed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.stores import copy_of, field_position, flip, log_file, records

from firetrail import Message, Store
from firetrail.cli.main import main
from firetrail.errors import (
    IllegalMessageError,
    PipelineError,
    StoreDamagedError,
    StoreError,
    StoreLockedError,
)
from firetrail.pipeline.jobs.replay import replay_job
from firetrail.pipeline.jobs.replay.replay_job import replay
from firetrail.pipeline.jobs.replay.targets import StoreTarget

Put = Callable[..., None]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def run(spark: SparkSession, source: Path, target: Path | None, **options: Any) -> Any:
    options = {"where": "topic = 'orders'", "config": small_config(), **options}
    return replay(spark, source, target, **options)


def bodies(root: Path) -> list[bytes]:
    return [record.body for record in records(root)]


def orders(root: Path) -> list[bytes]:
    return [record.body for record in records(root) if record.topic == "orders"]


def test_selected_messages_are_copied(
    spark: SparkSession, root: Path, target: Path, put: Put
) -> None:
    put(60)
    done = run(spark, root, target, where="topic = 'orders' and queue_id = 1", topic="again")
    copies = records(target)
    chosen = [r for r in records(root) if r.topic == "orders" and r.queue_id == 1]
    assert done.messages == len(copies) == len(chosen) > 5
    for copy, message in zip(copies, chosen, strict=True):
        assert (copy.topic, copy.queue_id, copy.body) == ("again", 1, message.body)
        assert copy.properties == message.properties | {"REPLAY_ORIGIN": message.message_id}
    with Store.open(target) as store:
        assert [m.body for m in store.query("again", "k3")] == [b"message 3"]


def test_names_in_a_predicate_may_have_any_case(
    spark: SparkSession, root: Path, target: Path, put: Put
) -> None:
    put(60)
    assert run(spark, root, target, where="TOPIC = 'orders' and `Queue_Id` >= 0").messages == 20
    assert sorted(bodies(target)) == sorted(orders(root))


def test_a_second_run_copies_only_new_messages(
    spark: SparkSession, root: Path, target: Path, put: Put
) -> None:
    put(30)
    assert run(spark, root, target).messages == 10
    assert run(spark, root, target).messages == 0
    put(30)
    assert run(spark, root, target).messages == 10
    assert sorted(bodies(target)) == sorted(orders(root))
    assert run(spark, root, target, replay_id="once more").messages == 20


@pytest.mark.parametrize("count", [6, 90])
def test_another_store_at_the_path_of_the_source_is_refused(
    spark: SparkSession, root: Path, target: Path, put: Put, count: int
) -> None:
    """Otherwise offsets that were copied from the old store would be skipped in the new one."""
    put(60)
    assert run(spark, root, target).messages == 20
    shutil.rmtree(root)
    put(count)
    with pytest.raises(StoreError) as caught:
        run(spark, root, target)
    error = str(caught.value)
    assert "is not the store that replay-" in error
    assert "the record at 0 is another one; give the replay of this store an id" in error
    assert run(spark, root, target, replay_id="new").messages == count // 3
    assert run(spark, root, target, replay_id="new").messages == 0


def test_an_empty_source_is_identified_once_it_has_messages(
    spark: SparkSession, root: Path, target: Path, put: Put
) -> None:
    """A source without messages has no record to identify it by."""
    put(0)
    assert run(spark, root, target).messages == 0
    put(30)
    assert run(spark, root, target).messages == 10
    shutil.rmtree(root)
    put(30)
    with pytest.raises(StoreError, match="not the store"):
        run(spark, root, target)


def test_damage_stops_a_replay_unless_it_is_permissive(
    spark: SparkSession, root: Path, target: Path, put: Put, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither damaged record is lost in silence, whether or not it is selected."""
    put(60)
    expected = orders(root)
    selected, other = (
        next(r for r in records(root)[20:] if (r.topic == "orders") is wanted)
        for wanted in (True, False)
    )
    for victim in (selected, other):
        path, at = log_file(root, victim.physical_offset)
        flip(path, field_position(path.read_bytes(), victim.physical_offset - at, at, "body"))
    with pytest.raises(StoreDamagedError, match="mode=permissive"):
        run(spark, root, target)
    dry = run(spark, root, None, mode="permissive")
    assert (dry.messages, dry.skipped) == (19, 2)
    done = run(spark, root, target, mode="permissive")
    assert (done.messages, done.skipped) == (19, 2)
    assert sorted(bodies(target)) == sorted(set(expected) - {selected.body})
    again = run(spark, root, target, mode="permissive")
    assert (again.messages, again.skipped) == (0, 0), "nothing is left after the last commit"
    where = ("--where", "topic = 'orders'", "--dry-run", "--mode", "permissive")
    assert main(["pipeline", "replay", str(root), *where]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1] == (
        f"2 damaged positions skipped; 'firetrail fsck {root}' lists the damage"
    )


def test_a_dry_run_only_counts(spark: SparkSession, root: Path, target: Path, put: Put) -> None:
    put(30)
    done = run(spark, root, target, dry_run=True)
    assert (done.messages, done.commits, done.dry_run) == (10, 0, True)
    assert done.bytes == sum(r.size for r in records(root) if r.topic == "orders")
    assert not target.exists()
    assert run(spark, root, None).messages == 10


def test_rate_limits_messages_per_second(
    spark: SparkSession, root: Path, target: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(30)
    now = [0.0]
    pauses: list[float] = []

    def sleep_ms(pause_ms: int) -> None:
        pauses.append(pause_ms / 1000)
        now[0] += pause_ms / 1000

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep_ms=sleep_ms)
    monkeypatch.setattr(replay_job, "SYSTEM", SimpleNamespace(clock=clock))
    done = run(spark, root, target, rate=4)
    assert (done.messages, done.commits, pauses) == (10, 3, [1.0, 1.0, 0.5])


def test_delayed_and_transactional_messages_become_plain(
    spark: SparkSession, root: Path, target: Path
) -> None:
    """The properties that delay a message, or that belong to a transaction, are not copied."""
    with Store.open(root, small_config()) as store:
        store.put(Message("T", b"delayed", delay_level=3, tags="t"))
        store.put(Message("T", b"prepared", sys_flag=0x4))
        store.put(Message("T", b"committed", sys_flag=0x8, properties={"TRAN_MSG": "true"}))
        store.put(Message("T", b"packed", sys_flag=0x1 | 0x300))
    run(spark, root, target, where="true", topic="U")
    copies = {copy.body: copy for copy in records(target)}
    assert sorted(copies) == [b"committed", b"delayed", b"packed"]
    assert set(copies[b"delayed"].properties) == {"TAGS", "REPLAY_ORIGIN"}
    assert set(copies[b"committed"].properties) == {"REPLAY_ORIGIN"}
    assert copies[b"packed"].sys_flag == 0x301
    assert copies[b"committed"].sys_flag == 0


def test_compressed_messages_keep_their_order(
    spark: SparkSession, root: Path, target: Path
) -> None:
    """Producers compress only large bodies, so a queue often has both kinds."""
    with Store.open(root, small_config()) as store:
        for number in range(24):
            flag = (0, 0, 0x1, 0x301)[number % 4]
            store.put(Message("T", b"%d" % number, queue_id=number % 3 % 2, sys_flag=flag))
    run(spark, root, target, where="true")
    for queue_id in (0, 1):
        copies, messages = (
            [(r.body, r.sys_flag) for r in records(store) if r.queue_id == queue_id]
            for store in (target, root)
        )
        assert copies == messages


def test_a_store_of_java_can_be_replayed(spark: SparkSession, tmp_path: Path, target: Path) -> None:
    source = copy_of("v5-propcrc", tmp_path / "java")
    done = run(spark, source, target, where="true", topic="T")
    assert done.messages == len(records(target)) > 10
    assert not any("__CRC32#" in record.properties for record in records(target))


def test_copies_in_the_same_store_are_not_copied_again(
    spark: SparkSession, root: Path, put: Put
) -> None:
    put(30)
    with pytest.raises(StoreError, match="name another topic with --topic"):
        run(spark, root, root)
    for _ in range(2):
        run(spark, root, root, where="true", topic="copies")
    assert len(records(root)) == 60


class TestRefused:
    def test_no_such_column(self, spark: SparkSession, root: Path, target: Path, put: Put) -> None:
        put(3)
        with pytest.raises(PipelineError, match="`topik` cannot be resolved"):
            run(spark, root, target, where="topik = 'a'")
        assert not target.exists()

    def test_an_illegal_topic(
        self, spark: SparkSession, root: Path, target: Path, put: Put
    ) -> None:
        put(3)
        with pytest.raises(IllegalMessageError, match="topic: 'no topic' has a character"):
            run(spark, root, target, topic="no topic")

    def test_a_target_in_use(self, spark: SparkSession, root: Path, target: Path, put: Put) -> None:
        put(3)
        with Store.open(target, small_config()), pytest.raises(StoreLockedError):
            run(spark, root, target)

    @pytest.mark.parametrize(
        ("source", "error"),
        [
            ("s3://bucket/store", "needs a local folder; copy the store to one"),
            ("namesrv=h:9876", "to copy from brokers, read with the data source"),
        ],
    )
    def test_a_source_without_a_local_folder(
        self, spark: SparkSession, target: Path, source: str, error: str
    ) -> None:
        with pytest.raises(StoreError, match=error):
            replay(spark, source, target, where="true")


class Killed(BaseException):
    """Simulates the kill of a process."""


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_a_replay_killed_between_commits_repeats_no_message(
    spark: SparkSession,
    root: Path,
    target: Path,
    put: Put,
    survived: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(60)
    monkeypatch.setattr(StoreTarget, "commit_messages", 7)
    real = StoreTarget.commit
    left = [survived]

    def dies(self: Any, *args: Any) -> bool:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(StoreTarget, "commit", dies)
        with pytest.raises(Killed):
            run(spark, root, target)
    assert run(spark, root, target).messages == 20 - 7 * survived
    assert sorted(bodies(target)) == sorted(orders(root))
    for queue_id in (0, 1):
        copied, chosen = (
            [r.body for r in records(p) if (r.topic, r.queue_id) == ("orders", queue_id)]
            for p in (target, root)
        )
        assert copied == chosen, "in the order of the queue"
