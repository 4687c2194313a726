"""Seeded bugs: stores that break a promise, each in one way. The checks must catch every one.

This is the score of the checks themselves. A mutant is a store with one thing wrong; it runs, and
recovers its own crashes, under the same survey that the real store passes (``test_power_loss``).
"""

import errno
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.crash.oracle import History, Violation
from tests.crash.seeded_bugs import expect_violation
from tests.crash.world.disk import PAGE, Disk, SimulatedFiles
from tests.crash.world.simulation import Checker, Process, Producer, scratch, survey, tiny_config

from firetrail import PutResult
from firetrail.settings import descriptors
from firetrail.storage.buffers import WriteBufferPool
from firetrail.storage.new_files import NewFiles
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.engine import Engine
from firetrail.store.index.index import Index
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.put.writer import Durability
from firetrail.store.queues.queue_table import QueueTable
from firetrail.store.recovery.recovery import Recovery
from firetrail.store.retention.housekeeper import Housekeeper

ATTEMPTS = 4

Patch = Callable[[pytest.MonkeyPatch], None]


class NoSync(SimulatedFiles):
    def sync(self, descriptor: int) -> None:
        self._announce("sync", descriptor)


class NoFolderSync(SimulatedFiles):
    def sync_folder(self, path: Path) -> None:
        self._announce("sync_folder", path)


class NoSyncProcess(Process):
    files_class = NoSync


class NoFolderSyncProcess(Process):
    files_class = NoFolderSync


def acknowledge_before_sync(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: Durability, result: PutResult, started: float) -> PutResult:
        return result

    patch.setattr(Durability, "wait", at_once)


def tail_not_zeroed(patch: pytest.MonkeyPatch) -> None:
    def move_only(self: Segment, position: int) -> int:
        self.set_position(position)
        return 0

    patch.setattr(Segment, "truncate", move_only)


def later_files_stay(patch: pytest.MonkeyPatch) -> None:
    def forget(self: SegmentQueue, offset: int) -> int:
        self.keep_first(max(sum(1 for s in self.segments if s.base < offset), 1))
        last = self.last
        return last.truncate(max(offset - last.base, 0)) if last is not None else 0

    patch.setattr(SegmentQueue, "truncate", forget)


def dispatch_before_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "dispatchable", lambda self: self.readable_offset)


def watermark_ahead_of_queues(patch: pytest.MonkeyPatch) -> None:
    def count_only(self: Housekeeper, is_over: Callable[[], bool] | None = None) -> bool:
        self._dispatched_offset = self._dispatcher.position
        return True

    patch.setattr(Housekeeper, "flush_derived", count_only)


def watermark_ahead_of_log(patch: pytest.MonkeyPatch) -> None:
    def count_all(self: Housekeeper, *, clean: bool) -> None:
        flushed, self._log.flushed_offset = self._log.flushed_offset, self._log.max_offset
        try:
            original(self, clean=clean)
        finally:
            self._log.flushed_offset = flushed

    original = Housekeeper.write_watermark
    patch.setattr(Housekeeper, "write_watermark", count_all)


def queue_offsets_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueTable, "continue_numbering", lambda self: None)


def one_record_too_many_cut(patch: pytest.MonkeyPatch) -> None:
    def stop_early(self: Recovery, start: int) -> Any:
        end, stop = original(self, start)
        return (self._last_record if self._messages else end), stop

    original = Recovery._scan
    patch.setattr(Recovery, "_scan", stop_early)


def queues_not_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("firetrail.store.queues.consume_queue.ConsumeQueue.cut", lambda self, *rules: 0)


def index_not_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Index, "cut", lambda self, plan, time_of: None)


def buffer_reused_before_commit(patch: pytest.MonkeyPatch) -> None:
    def reserve(self: WriteBufferPool, segment: Segment, size: int) -> Any:
        if self._waiting and len(self._waiting) % 2:
            self._waiting[-1].view[: self._waiting[-1].used // 2] = bytes(
                self._waiting[-1].used // 2
            )
        return original(self, segment, size)

    original = WriteBufferPool.reserve
    patch.setattr(WriteBufferPool, "reserve", reserve)


def delete_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Engine, "_settled", lambda self: min(self.dispatcher.position, self.log.flushed_offset)
    )


def closes_unsynced(patch: pytest.MonkeyPatch) -> None:
    def close_only(self: Segment) -> bool:
        self.flushed = self.committed
        return original(self)

    original = Segment.close_if_idle
    patch.setattr(Segment, "close_if_idle", close_only)
    patch.setattr(descriptors, "FILES_LEAST", 2)


def new_queues_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewFiles, "sync", lambda self, is_over=None: True)


def next_file_outlasts_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewFiles, "sync_one", lambda self, segment: None)


MUTANTS: list[tuple[str, str, type[Process], Patch | None, dict[str, Any], int]] = [
    # name, flush mode, process, what is wrong, settings, and the seed of a survey that catches it
    ("nothing is synced", "sync", NoSyncProcess, None, {}, 3),
    ("folders are not synced", "sync", NoFolderSyncProcess, None, {}, 3),
    ("a put is acknowledged before the sync", "sync", Process, acknowledge_before_sync, {}, 3),
    ("bodies are not checked", "async", Process, None, {"check_crc_on_recover": False}, 2),
    ("the tail is not zeroed", "async", Process, tail_not_zeroed, {}, 3),
    ("files after the end of the log are kept", "async", Process, later_files_stay, {}, 3),
    ("messages are readable before the sync", "sync", Process, dispatch_before_flush, {}, 3),
    ("the watermark is ahead of the queues", "sync", Process, watermark_ahead_of_queues, {}, 3),
    ("the watermark is ahead of the log", "async", Process, watermark_ahead_of_log, {}, 3),
    ("queue offsets are assigned twice", "async", Process, queue_offsets_again, {}, 3),
    ("one record too many is cut", "sync", Process, one_record_too_many_cut, {}, 3),
    ("queues are not cut", "async", Process, queues_not_cut, {}, 3),
    ("the index is not cut", "async", Process, index_not_cut, {}, 3),
    ("a buffer is reused before its commit", "pool", Process, buffer_reused_before_commit, {}, 3),
    (
        "log files are deleted before the queues are durable",
        "sync",
        Process,
        delete_too_early,
        {},
        3,
    ),
    ("a queue file is closed before it is synced", "async", Process, closes_unsynced, {}, 3),
    ("names of new queues are not synced", "sync", Process, new_queues_not_synced, {}, 3),
    (
        "a queue's second file is durable before its first",
        "sync",
        Process,
        next_file_outlasts_the_first,
        {},
        0,
    ),
]


@pytest.mark.parametrize(
    ("mode", "process_class", "patch", "settings", "first"),
    [mutant[1:] for mutant in MUTANTS],
    ids=[mutant[0] for mutant in MUTANTS],
)
def test_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    process_class: type[Process],
    patch: Patch | None,
    settings: dict[str, Any],
    first: int,
) -> None:
    if patch is not None:
        patch(monkeypatch)
    config = tiny_config(mode, property_crc=True, **settings)
    seeds = sorted(range(ATTEMPTS), key=lambda seed: (seed != first, seed))
    expect_violation(partial(survey, config, process_class=process_class), seeds)


def test_a_failed_sync_that_is_tried_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def try_twice(self: Segment) -> None:
        committed = self.committed
        try:
            self.system.files.sync(self.descriptor)
        except OSError:
            self.system.files.sync(self.descriptor)
        self.flushed = committed

    monkeypatch.setattr(Segment, "sync", try_twice)
    config = tiny_config("sync", property_crc=True)
    with scratch() as folder:
        (folder / "live").mkdir()
        process = Process(Disk(folder / "live"), config, History(), seed=1)
        process.open()
        failed: list[str] = []

        def fail_once(kind: str, name: str) -> None:
            if kind == "sync" and name == "commitlog/00000000000000000000" and not failed:
                failed.append(name)
                raise OSError(errno.EIO, "failed", name)

        process.files.hooks.append(fail_once)
        assert process.put(Producer(random.Random(1)).message()).ok
        process.kill()
        assert failed
        image = process.disk.snapshot().image(PAGE, ())
        with pytest.raises(Violation, match="I1"):
            Checker(folder, config).check(
                image, process.history, process.history.survive_power_loss
            )
