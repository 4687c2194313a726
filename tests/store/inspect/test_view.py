"""A store opened for reading only: closed, crashed, in use, damaged."""

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.helpers import Machine, crash_image, put_all, small_config
from tests.stores import CLEAN, CRASHED, GOLDEN, NAMES, copy_of, flip, records, state, truncate

from firetrail import Message, Store
from firetrail.errors import NotAStoreError
from firetrail.format import columns as col
from firetrail.format import layout
from firetrail.store.inspect.log_tail import TailKind, read_tail
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.walk import Damage, RecordBatch
from firetrail.store.problems import ProblemKind


def walked(view: StoreView) -> tuple[list[int], list[Damage]]:
    """Physical offsets of all records, and what was met between them."""
    offsets: list[int] = []
    damage = []
    for part in view.walk():
        if isinstance(part, RecordBatch):
            offsets += part.columns.column(col.PHYSICAL_OFFSET)[: part.rows].tolist()
            if part.failed:
                damage.append(part.failed)
        else:
            damage.append(part)
    return offsets, damage


@pytest.mark.parametrize("name", NAMES)
def test_golden_stores_are_read_completely(name: str) -> None:
    expected = records(GOLDEN / name)
    with StoreView.open(GOLDEN / name) as view:
        assert view.state is (StoreState.CRASHED if name in CRASHED else StoreState.CLOSED)
        assert view.owner is None
        offsets, damage = walked(view)
        assert offsets == [record.physical_offset for record in expected]
        assert not damage
        assert view.end == expected[-1].physical_offset + expected[-1].size
        assert view.last_record == expected[-1].physical_offset
        assert read_tail(view).kind is TailKind.NOTHING
        assert not view.queue_faults and not view.index_faults and not view.log.misfits
        assert set(view.foreign()) <= {"abort.bak", "compaction"}


@pytest.mark.parametrize("name", NAMES)
def test_file_sizes_are_found(name: str) -> None:
    with StoreView.open(GOLDEN / name) as view:
        sizes = {
            "v4-clean": (4096, 2000, 100, 400),
            "v4-crashed": (1024, 2000, 100, 400),
            "v4-rolled": (8192, 2000, 100, 400),
            "v4-rebuilt": (8192, 2000, 100, 400),
            "v5-clean": (4096, 400, 20, 64),
            "v5-crashed": (1024, 400, 20, 64),
            "v5-propcrc": (4096, 400, 20, 64),
        }[name]
        config = view.config
        assert sizes == (
            config.commit_log_file_size,
            config.consume_queue_file_size,
            config.index_slots,
            config.index_entries,
        )


@pytest.mark.parametrize("name", NAMES)
def test_reading_changes_nothing(name: str, tmp_path: Path) -> None:
    root = copy_of(name, tmp_path)
    before = state(root)
    with StoreView.open(root) as view:
        walked(view)
        view.reader.query("T1", "common")
        for topic, queue_id in view.queues.pairs():
            view.reader.get(topic, queue_id, 0)
    assert state(root) == before


def test_no_file_is_left_open() -> None:
    machine = Machine()
    with StoreView.open(GOLDEN / "v5-clean", system=machine.system) as view:
        walked(view)
    assert machine.files.open_files == []
    assert not {"write", "set_size", "allocate", "lock_memory"} & set(machine.files.tally())


class TestInUse:
    @pytest.mark.stepped_threads
    def test_a_store_that_this_process_has_open(self, machine: Machine, tmp_path: Path) -> None:
        with Store.open(tmp_path / "s", small_config(), system=machine.system) as store:
            offsets = put_all(store, [b"%d" % n for n in range(40)], keys=["k"])
            before = state(tmp_path)
            with StoreView.open(tmp_path / "s") as view:
                assert (view.state, view.owner) == (StoreState.OPEN, os.getpid())
                assert walked(view) == (offsets, [])
                assert view.end == store.log_range[1]
                assert len(view.reader.query("T", "k", max_count=50).buffers) == 40
            assert state(tmp_path) == before
            store.put(Message("T", b"still ours"))
        assert subprocess.run([sys.executable, "-c", _OPENS, tmp_path / "s"]).returncode == 0

    def test_the_lock_survives_a_look(self, tmp_path: Path) -> None:
        with Store.open(tmp_path, small_config()) as store:
            put_all(store, [b"one"])
            StoreView.open(tmp_path).close()
            told = subprocess.run(
                [sys.executable, "-c", _OPENS, tmp_path], capture_output=True, text=True
            )
            assert "StoreLockedError" in told.stderr

    def test_a_store_that_another_process_has_open(self, tmp_path: Path) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", _WRITES, tmp_path / "s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as writer:
            assert writer.stdin is not None and writer.stdout is not None
            assert writer.stdout.readline() == b"30\n"
            before = settled_state(tmp_path)  # the next log file is created first
            with StoreView.open(tmp_path / "s") as view:
                assert (view.state, view.owner) == (StoreState.OPEN, writer.pid)
                assert len(walked(view)[0]) == 30
            assert state(tmp_path) == before
            writer.stdin.close()
        with StoreView.open(tmp_path / "s") as view:
            assert view.state is StoreState.CLOSED

    def test_the_last_record_may_be_half_written(self, tmp_path: Path) -> None:
        """Prepared messages have no unit: the last of them counts once another one follows."""
        prepared = layout.TRANSACTION_PREPARED
        with Store.open(tmp_path, small_config()) as store:
            put_all(store, [b"a"])
            second = store.put(Message("T", b"b", sys_flag=prepared)).physical_offset
            store.wait_dispatched()
            with StoreView.open(tmp_path) as view:
                assert view.end == second
            third = store.put(Message("T", b"c", sys_flag=prepared)).physical_offset
            store.wait_dispatched()
            with StoreView.open(tmp_path) as view:
                assert view.end == third
        with StoreView.open(tmp_path) as view:
            assert len(walked(view)[0]) == 3

    def test_files_that_retention_deletes_during_the_walk(self, tmp_path: Path) -> None:
        with Store.open(tmp_path, small_config(log=1024)) as store:
            offsets = put_all(store, [b"x" * 100] * 30)
        config = small_config(log=1024)
        with Store.open(tmp_path, config) as store, StoreView.open(tmp_path) as view:
            assert store.delete_expired(forced=True)
            left = [offset for offset in offsets if offset >= store.log_range[0]]
            assert walked(view) == (left, [])


_OPENS = """
import sys
from firetrail import Store
Store.open(sys.argv[1]).close()
"""


def settled_state(folder: Path) -> object:
    """The state of a folder in which another process has no more to do."""
    known = None
    while (found := state(folder)) != known:
        known = found
        time.sleep(0.1)
    return found


_WRITES = """
import sys
from firetrail import Message, Store
from tests.helpers import small_config
with Store.open(sys.argv[1], small_config()) as store:
    for n in range(30):
        store.put(Message("T", b"x"))
    store.wait_dispatched()
    print(30, flush=True)
    sys.stdin.read()
"""


class TestTheEnd:
    def test_of_a_crashed_store_is_its_last_good_record(self, tmp_path: Path) -> None:
        with Store.open(tmp_path / "s", small_config()) as store:
            offsets = put_all(store, [b"%d" % n * 20 for n in range(5)])
            end = store.log_range[1]
            root = crash_image(tmp_path / "s", tmp_path / "crashed")
        log = root / "commitlog" / ("0" * 20)
        flip(log, end - 20)  # in the properties: no checksum covers them
        flip(log, offsets[-1] + 90)
        with StoreView.open(root) as view:
            assert view.state is StoreState.CRASHED
            assert view.end == offsets[-1]
            tail = read_tail(view)
            assert tail.kind is TailKind.TORN
            assert tail.found is not None and tail.found.kind is ProblemKind.BODY_CRC

    @pytest.mark.parametrize("name", CLEAN)
    def test_the_end_is_found_without_queues_index_and_watermark(
        self, name: str, tmp_path: Path
    ) -> None:
        root = copy_of(name, tmp_path)
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
        expected = records(root)
        with StoreView.open(root) as view:
            assert view.end == expected[-1].physical_offset + expected[-1].size
            assert len(walked(view)[0]) == len(expected)

    def test_is_not_fooled_by_a_wild_unit(self, tmp_path: Path) -> None:
        root = copy_of("v4-clean", tmp_path)
        unit = root / "consumequeue" / "TB" / "0" / ("0" * 20)
        flip(unit, 2 * 20 + 5, 4)  # its offset is now somewhere in a file that is not there
        with StoreView.open(root) as view:
            assert view.end == 3137

    def test_a_last_record_with_a_wrong_body_was_there(self, tmp_path: Path) -> None:
        root = copy_of("v4-clean", tmp_path)
        last = records(root)[-1]
        flip(root / "commitlog" / ("0" * 20), last.physical_offset + 90)
        with StoreView.open(root) as view:
            offsets, damage = walked(view)
            assert offsets[-1] == last.physical_offset
            assert [found.kind for found in damage] == [ProblemKind.BODY_CRC]

    def test_a_damaged_last_record_of_a_closed_log(self, tmp_path: Path) -> None:
        root = copy_of("v4-clean", tmp_path)
        last = records(root)[-1]
        flip(root / "commitlog" / ("0" * 20), last.physical_offset + 4)
        with StoreView.open(root) as view:
            assert view.end == last.physical_offset
            tail = read_tail(view)
            assert tail.kind is TailKind.DAMAGED
            assert tail.found is not None and tail.found.kind is ProblemKind.RECORD_MAGIC

    def test_old_bytes_after_a_closed_log_do_not_count(self, tmp_path: Path) -> None:
        """The Java store leaves them when it truncates its log."""
        root = copy_of("v4-clean", tmp_path)
        log = root / "commitlog" / ("0" * 20)
        content = bytearray(log.read_bytes())
        content[3137 : 3137 + 166] = content[100:266]
        log.write_bytes(content)
        with StoreView.open(root) as view:
            assert view.end == 3137
            assert read_tail(view).kind is TailKind.STALE
            assert len(walked(view)[0]) == 21

    def test_a_log_that_lost_what_was_on_disk(self, tmp_path: Path) -> None:
        with Store.open(tmp_path, small_config()) as store:
            offsets = put_all(store, [b"x"] * 5)
        log = tmp_path / "commitlog" / ("0" * 20)
        content = log.read_bytes()
        log.write_bytes(content[: offsets[3]].ljust(len(content), b"\0"))
        with StoreView.open(tmp_path) as view:
            assert view.end == offsets[3]
            tail = read_tail(view)
            assert tail.kind is TailKind.DAMAGED
            assert tail.found is not None and tail.found.kind is ProblemKind.LOG_END


class TestWhatDoesNotFit:
    def test_a_missing_log_file(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        expected = [record.physical_offset for record in records(root)]
        (root / "commitlog" / f"{8192:020}").unlink()
        with StoreView.open(root) as view:
            offsets, damage = walked(view)
            assert offsets == [o for o in expected if not 8192 <= o < 16384]
            assert [(found.kind, found.physical_offset) for found in damage] == [
                (ProblemKind.FILE_MISSING, 8192)
            ]
            (misfit,) = view.log.misfits
            assert (misfit.kind, misfit.file) == (ProblemKind.FILE_MISSING, f"commitlog/{8192:020}")

    @pytest.mark.parametrize("base", [0, 8192, 40960])
    def test_a_short_log_file(self, base: int, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        truncate(root / "commitlog" / f"{base:020}", 1000)
        with StoreView.open(root) as view:
            offsets, _ = walked(view)
            assert view.log.segment_size == 8192
            assert [m.kind for m in view.log.misfits] == [ProblemKind.FILE_SIZE]
            assert max(o for o in offsets if o < base + 1000) >= base

    def test_a_short_queue_file_is_a_fault_of_its_queue(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        truncate(root / "consumequeue" / "T1" / "0" / ("0" * 20), 1990)
        with StoreView.open(root) as view:
            assert view.queue_file_size == 2000
            assert view.queue_faults["T1", 0].kind is ProblemKind.FILE_SIZE
            assert len(walked(view)[0]) == 259

    def test_a_file_that_is_not_an_index_file(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        first, second = sorted((root / "index").iterdir())
        flip(first, 0, 7)  # a negative time
        truncate(second, 77)
        (root / "index" / ("2" * 17)).write_bytes(b"")
        with StoreView.open(root) as view:
            assert [fault.kind for fault in view.index_faults] == [ProblemKind.INDEX_FILE] * 2
            assert view.reader.query("T1", "common").buffers == []
            assert len(walked(view)[0]) == 259

    def test_a_file_that_cannot_be_read(self) -> None:
        machine = Machine()
        machine.files.fail("open", errno.EACCES, f"commitlog/{8192:020}")
        machine.files.fail("open", errno.EIO, "T1/1")
        with StoreView.open(GOLDEN / "v4-rolled", system=machine.system) as view:
            _, damage = walked(view)
            assert [(found.kind, found.detail) for found in damage] == [
                (ProblemKind.FILE_UNREADABLE, "Permission denied")
            ]
            assert view.queue_faults["T1", 1].kind is ProblemKind.FILE_UNREADABLE

    def test_foreign_files_are_listed(self, tmp_path: Path) -> None:
        root = copy_of("v4-clean", tmp_path)
        strange = [
            "notes.txt",
            "commitlog/old",
            "index/readme",
            "consumequeue/file",
            "consumequeue/T1/x",
            "consumequeue/T1/0/123",
        ]
        for name in strange:
            (root / name).touch()
        (root / "rocksdbstore").mkdir()
        with StoreView.open(root) as view:
            assert view.foreign() == sorted([*strange, "rocksdbstore"])
            assert len(walked(view)[0]) == 21


@pytest.mark.parametrize("make", ["missing", "file", "empty", "foreign"])
def test_a_folder_that_is_not_a_store_is_refused(make: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    if make == "file":
        path.touch()
    elif make != "missing":
        path.mkdir()
    if make == "foreign":
        (path / "consumequeue").mkdir()
    with pytest.raises(NotAStoreError, match=str(path)):
        StoreView.open(path)


def test_a_view_of_an_empty_store_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with StoreView.open(tmp_path) as view:
        assert (view.end, view.last_record) == (0, -1)
        assert walked(view) == ([], [])
        assert view.reader.query("T", "k").buffers == []
        assert read_tail(view).kind is TailKind.NOTHING
