"""The rebuild job: queues and index equal those of the dispatcher, byte for byte."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.generations import Shop, not_empty, seen_in
from tests.helpers import Machine, put_all, small_config, tree
from tests.pipeline.oddlog import ODD_RECORDS, PLAIN_RECORDS, write_log
from tests.stores import CLEAN, CRASHED, LIGHT, copy_of, derived, flip, records, state

from firetrail import Message, Store
from firetrail.errors import (
    IllegalMessageError,
    NotAStoreError,
    StoreDamagedError,
    StoreError,
    StoreLockedError,
)
from firetrail.format.files.index import index_file_size
from firetrail.format.files.unit import PRE_BLANK, encode_unit
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.format.values.hosts import Host
from firetrail.pipeline.jobs.rebuild import arrangement, rebuild_job
from firetrail.pipeline.jobs.rebuild.rebuild_job import rebuild
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.inspect.view import StoreView
from firetrail.store.repair import rebuild as one_process

DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
BODY_AT = 88
"""Where the body begins in a record with IPv4 addresses."""
PREPARED, COMMITTED, ROLLED_BACK = 0x4, 0x8, 0xC


def by_one_process(root: Path, target: Path) -> one_process.RebuildResult:
    with StoreView.open(root) as view:
        return one_process.rebuild(view, target, DELAYS, lambda done: None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with several files and messages of each kind."""
    config = small_config(units=20, slots=20)
    with Store.open(tmp_path / "store", config) as opened:
        for number in range(200):
            opened.put(
                Message(
                    f"t{number % 3}",
                    b"x" * (number % 50),
                    tags="a" if number % 2 else None,
                    keys=[f"k{number}", "common"],
                    queue_id=number % 2,
                    delay_level=3 if number % 40 == 0 else 0,
                    sys_flag=(0, 0, 0, 0, PREPARED, 0, COMMITTED, ROLLED_BACK)[number % 8],
                )
            )
    return tmp_path / "store"


def small_files(root: Path) -> None:
    """Empty files from which the sizes of queue and index files follow: they are RocketMQ's else,
    many megabytes."""
    for name, size in (
        (f"consumequeue/T/0/{0:020}", 200),
        ("index/20260101000000000", index_file_size(16, 64)),
    ):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(bytes(size))


def written(root: Path, record: dict[str, Any]) -> tuple[int, bytes]:
    """Return the size and bytes of a log with one record."""
    write_log(root, [record])
    content = (root / "commitlog" / f"{0:020}").read_bytes()
    return int.from_bytes(content[:4], "big"), content


class TestTheSameFiles:
    @pytest.mark.parametrize("name", [*CLEAN, LIGHT])
    def test_files_equal_those_of_java(
        self, name: str, tmp_path: Path, spark: SparkSession
    ) -> None:
        root = copy_of(name, tmp_path)
        before = state(root)
        made = rebuild(spark, root, tmp_path / "new")
        assert derived(tmp_path / "new") == derived(root)
        assert made.messages == len(records(root))
        assert (made.queues, made.index_files) == (
            len(list((tmp_path / "new" / "consumequeue").glob("*/*"))),
            len(list((tmp_path / "new" / "index").iterdir())),
        )
        assert state(root) == before

    @pytest.mark.parametrize("name", CRASHED)
    def test_crashed_stores_are_rebuilt_as_by_one_process(
        self, name: str, tmp_path: Path, spark: SparkSession
    ) -> None:
        root = copy_of(name, tmp_path)
        made = rebuild(spark, root, tmp_path / "new")
        assert made == by_one_process(root, tmp_path / "expected")
        assert derived(tmp_path / "new") == derived(tmp_path / "expected")

    def test_files_equal_those_of_dispatch(
        self, store: Path, tmp_path: Path, spark: SparkSession
    ) -> None:
        made = rebuild(spark, str(store), str(tmp_path / "new"))
        queues, index = derived(store)
        assert derived(tmp_path / "new") == (queues, index)
        assert (made.messages, made.queues, made.index_files) == (200, 7, len(index))
        assert len(index) > 2 and len(queues) > made.queues
        assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "store"]

    def test_long_queues_are_written_by_several_tasks(
        self, store: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(arrangement, "RANGE_BYTES", 800)
        monkeypatch.setattr(arrangement, "TASK_BYTES", 2000)
        rebuild(spark, store, tmp_path / "new")
        assert derived(tmp_path / "new") == derived(store)

    def test_a_log_file_may_be_read_in_several_parts(
        self, store: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rebuild_job, "PART_BYTES_MIN", 500)
        monkeypatch.setattr(rebuild_job, "PARTS_PER_SLOT", 50)
        with StoreView.open(store) as view:
            parts = list(rebuild_job._parts(view, 2))
            assert len(parts) > 3 * len(view.log.segments)
        assert rebuild(spark, store, tmp_path / "new").messages == 200
        assert derived(tmp_path / "new") == derived(store)

    def test_a_part_that_begins_with_the_copy_of_a_record(
        self, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A body can look like a record, even with the right offset."""
        root = tmp_path / "store"
        first_size = written(tmp_path / "first", {})[0]
        inside = first_size + BODY_AT
        size, inner = written(tmp_path / "inner", {"physical_offset": inside, "queue_id": 7})
        write_log(root, [{}, {"body": inner[:size]}, {}])
        small_files(root)
        monkeypatch.setattr(rebuild_job, "PART_BYTES_MIN", first_size + 10)
        with StoreView.open(root) as view:
            assert inside in [start for _, start, _ in rebuild_job._parts(view, 2)]
        made = rebuild(spark, root, tmp_path / "new")
        assert made == by_one_process(root, tmp_path / "expected")
        assert made.messages == 3
        assert derived(tmp_path / "new") == derived(tmp_path / "expected")

    def test_a_log_without_its_beginning(self, tmp_path: Path, spark: SparkSession) -> None:
        """After retention, queues begin with blank units, and the index begins later."""
        config = small_config(log=1024, units=40)
        root = tmp_path / "store"
        with Store.open(root, config) as opened:
            put_all(opened, [b"x" * 100] * 60, keys=["a", "b"])
            put_all(opened, [b"x" * 100] * 70, keys=["a", "b"], queue_id=1)
        with Store.open(root, config) as opened:
            assert opened.delete_expired(forced=True)
        rebuild(spark, root, tmp_path / "new")
        by_one_process(root, tmp_path / "expected")
        queues, index = derived(tmp_path / "new")
        assert (queues, index) == derived(tmp_path / "expected")
        first = queues[min(queues)]
        assert first.startswith(encode_unit(PRE_BLANK))
        own_queues, _ = derived(root)
        for name, content in queues.items():
            blank = content.count(encode_unit(PRE_BLANK)) * 20
            assert content[blank:] == own_queues[name][blank:]

    def test_a_store_in_use_can_be_rebuilt_elsewhere(
        self, tmp_path: Path, spark: SparkSession
    ) -> None:
        with Store.open(tmp_path / "store", small_config(log=2048)) as opened:
            put_all(opened, [b"x"] * 50, keys=["k"])
            assert rebuild(spark, tmp_path / "store", tmp_path / "new").messages == 50
            opened.put(Message("T", b"more"))

    def test_topics_that_were_deleted_and_created_again(
        self, tmp_path: Path, spark: SparkSession
    ) -> None:
        shop = Shop(tmp_path / "store")
        for count in (6, 2):
            shop.put("T", 0, count)
            shop.put("T", 1, count)
            shop.put("U", 0, 3, "%LMQ%L")
            if count == 6:
                shop.delete("T")
                shop.delete("%LMQ%L")
        shop.put("Gone", 0, 2)
        shop.delete("Gone")
        shop.close()
        made = rebuild(spark, shop.root, tmp_path / "new")
        assert derived(tmp_path / "new") == derived(shop.root)
        assert made == by_one_process(shop.root, tmp_path / "expected")
        assert [(each.topic, each.messages) for each in made.left_out] == [
            ("%LMQ%L", 3),
            ("Gone", 2),
            ("T", 12),
        ]
        before = derived(shop.root)
        assert rebuild(spark, shop.root) == made
        assert derived(shop.root) == before and not_empty(seen_in(shop.root)) == shop.seen

    def test_queues_of_batches_are_left_alone(self, tmp_path: Path, spark: SparkSession) -> None:
        root = copy_of("v5-clean", tmp_path)
        (root / "batchconsumequeue").mkdir()
        (root / "consumequeue" / "T1").rename(root / "batchconsumequeue" / "T1")
        made = rebuild(spark, root, tmp_path / "new")
        assert derived(tmp_path / "new") == derived(root)
        assert made == by_one_process(root, tmp_path / "expected")
        assert [each.topic for each in made.left_out] == ["T1"]

    def test_an_empty_log_gives_no_files(self, tmp_path: Path, spark: SparkSession) -> None:
        (tmp_path / "store" / "commitlog").mkdir(parents=True)
        assert rebuild(spark, tmp_path / "store", tmp_path / "new") == (0, 0, 0, ())
        assert list((tmp_path / "new").iterdir()) == []

    def test_unusual_records_are_rebuilt_as_by_one_process(
        self, tmp_path: Path, spark: SparkSession
    ) -> None:
        odd = [
            record
            for record in (*PLAIN_RECORDS, *ODD_RECORDS)
            if record.get("topic") != b"\xff\xff"
        ]
        write_log(tmp_path / "store", odd)
        made = rebuild(spark, tmp_path / "store", tmp_path / "new")
        assert made == by_one_process(tmp_path / "store", tmp_path / "expected")
        assert derived(tmp_path / "new") == derived(tmp_path / "expected")

    def test_offsets_that_begin_again_are_rebuilt_as_by_one_process(
        self, tmp_path: Path, spark: SparkSession
    ) -> None:
        """Queue offsets begin again with 0, as after a topic was deleted and created again."""
        again = [{"queue_id": 0, "queue_offset": offset} for offset in (0, 1, 2, 0, 1, 2, 3, 0)]
        write_log(tmp_path / "store", again)
        small_files(tmp_path / "store")
        rebuild(spark, tmp_path / "store", tmp_path / "new")
        by_one_process(tmp_path / "store", tmp_path / "expected")
        assert derived(tmp_path / "new") == derived(tmp_path / "expected")


MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["T", "other", "%RETRY%group"]),
    body=st.binary(max_size=80),
    tags=st.sampled_from([None, "red", "green"]),
    keys=st.lists(st.sampled_from(["k1", "k2", "schlüssel", "🔑"]), max_size=3, unique=True),
    queue_id=st.integers(0, 2),
    delay_level=st.sampled_from([0, 0, 0, 1, 18, 30]),
    sys_flag=st.sampled_from([0, 0, 0, PREPARED, COMMITTED, ROLLED_BACK]),
    born_host=st.sampled_from([Host("10.1.2.3", 5001), Host("2001:db8::7", 5001)]),
)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=60),
    units=st.integers(1, 12),
    entries=st.integers(2, 40),
    tags=st.booleans(),
    v6=st.booleans(),
)
def test_random_stores_are_rebuilt_as_dispatched(
    spark: SparkSession, messages: list[Message], units: int, entries: int, tags: bool, v6: bool
) -> None:
    host = Host("2001:db8:0:1::2", 10911) if v6 else Host("192.168.1.2", 10911)
    config = small_config(
        log=2048, units=units, slots=7, entries=entries, index_tags=tags, store_host=host
    )
    machine = Machine()
    with tempfile.TemporaryDirectory() as folder:
        root, new = Path(folder, "store"), Path(folder, "new")
        with Store.open(root, config, system=machine.system) as opened:
            for message in messages:
                machine.clock.advance(700)
                opened.put(message)
        made = rebuild(spark, root, new)
        assert made.messages == len(messages)
        assert derived(new) == expected(root, Path(folder, "expected"), tags)


def expected(root: Path, target: Path, tags: bool) -> tuple[dict[str, bytes], list[bytes]]:
    """Return the store's own files, unless its index is too short to show whether it has tags."""
    with StoreView.open(root) as view:
        if not tags or has_tag_entries(view.index, view.log):
            return derived(root)
    by_one_process(root, target)
    return derived(target)


class TestInPlace:
    def test_queues_and_index_are_replaced(self, store: Path, spark: SparkSession) -> None:
        before = derived(store)
        flip(store / "consumequeue" / "t1" / "0" / f"{0:020}", 5)
        sorted((store / "index").iterdir())[1].unlink()
        assert rebuild(spark, store).messages == 200
        assert derived(store) == before
        with Store.open(store) as opened:
            assert opened.recovery.clean
            opened.put(Message("t0", b"more"))

    def test_a_store_in_use_is_left_alone(self, store: Path, spark: SparkSession) -> None:
        with Store.open(store), pytest.raises(StoreLockedError):
            rebuild(spark, store)

    def test_a_store_that_was_not_closed(self, store: Path, spark: SparkSession) -> None:
        (store / "abort").touch()
        before = tree(store)
        with pytest.raises(StoreError, match=r"was not closed; open it once"):
            rebuild(spark, store)
        assert tree(store) == before | {"lock": b"fire"}


class TestRefused:
    @pytest.mark.parametrize("into", ["rebuilt", None])
    def test_a_log_without_files(
        self, into: str | None, store: Path, tmp_path: Path, spark: SparkSession
    ) -> None:
        for path in (store / "commitlog").iterdir():
            path.unlink()
        before = tree(store)
        with pytest.raises(StoreDamagedError, match="the log has no file, although it had"):
            rebuild(spark, store, into and tmp_path / into)
        assert tree(store) == before

    def test_a_damaged_log(self, store: Path, tmp_path: Path, spark: SparkSession) -> None:
        flip(sorted((store / "commitlog").iterdir())[1], 4)
        with pytest.raises(StoreDamagedError, match="no good record here") as caught:
            rebuild(spark, store, tmp_path / "new")
        assert caught.value.physical_offset == 4096
        assert [path.name for path in tmp_path.iterdir()] == ["store"]

    def test_a_missing_file(self, store: Path, tmp_path: Path, spark: SparkSession) -> None:
        sorted((store / "commitlog").iterdir())[2].unlink()
        with pytest.raises(StoreDamagedError, match="no good record here") as caught:
            rebuild(spark, store, tmp_path / "new")
        assert caught.value.physical_offset == 8192

    def test_a_gap_in_a_queue(self, tmp_path: Path, spark: SparkSession) -> None:
        write_log(tmp_path / "store", [{"queue_id": 0, "queue_offset": n} for n in (0, 1, 3, 4)])
        with pytest.raises(StoreDamagedError) as expected:
            by_one_process(tmp_path / "store", tmp_path / "new")
        with pytest.raises(StoreDamagedError) as caught:
            rebuild(spark, tmp_path / "store", tmp_path / "new")
        assert str(caught.value) == str(expected.value)

    def test_a_topic_that_cannot_be_a_folder(self, tmp_path: Path, spark: SparkSession) -> None:
        write_log(tmp_path / "store", [{"topic": b"a/b"}])
        with pytest.raises(IllegalMessageError, match="cannot be the name of a folder"):
            rebuild(spark, tmp_path / "store", tmp_path / "new")
        assert not (tmp_path / "new.building").exists()

    def test_targets_that_are_not_allowed(
        self, store: Path, tmp_path: Path, spark: SparkSession
    ) -> None:
        with pytest.raises(StoreError, match="inside the store"):
            rebuild(spark, store, store / "new")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(StoreError, match="not an empty folder"):
            rebuild(spark, store, tmp_path / "full")
        with pytest.raises(NotAStoreError):
            rebuild(spark, tmp_path / "full", tmp_path / "new")


def test_leftovers_of_killed_jobs_are_removed(
    store: Path, tmp_path: Path, spark: SparkSession
) -> None:
    for name in ("pieces", "parts/1234/consumequeue/t0/0", "consumequeue/gone/0"):
        (tmp_path / "new.building" / name).mkdir(parents=True)
    (tmp_path / "new.building" / "lock").touch()
    rebuild(spark, store, tmp_path / "new")
    assert derived(tmp_path / "new") == derived(store)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "store"]
