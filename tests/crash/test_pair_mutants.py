"""Seeded bugs of replication: the surveys of a master and its replica must catch each."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.crash.oracle import Violation
from tests.crash.power_loss.pair_survey import check_count_of_replicas, damage_survey, pair_survey
from tests.crash.seeded_bugs import expect_violation
from tests.crash.world.pair import pair_config

from firetrail.format.columns import Check, Stop
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.names import OFFSET_MAX
from firetrail.replication.ha.ha_frames import FROM_THE_START
from firetrail.replication.ha.master_session import MasterSession, Transfer
from firetrail.replication.ha.replica_session import ReplicaSession
from firetrail.replication.log.incoming_log import IncomingLog
from firetrail.store import engine
from firetrail.store.engine import Engine
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.log.flusher import Waiter
from firetrail.store.log.replica_acks import ReplicaAcks
from firetrail.store.log_copy import LogCopy
from firetrail.store.queues.queue_table import QueueTable
from firetrail.store.reads.reader import Reader
from firetrail.store.root.confirmed_file import ConfirmedFile

ATTEMPTS = 4
Patch = Callable[[pytest.MonkeyPatch], None]


def confirmed_before_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogCopy, "durable_offset", lambda self: self.max_offset)


def first_report_before_sync(patch: pytest.MonkeyPatch) -> None:
    def report(self: ReplicaSession, now: float) -> bytes | None:
        if self._reported < 0:
            return self._note_report(self._first_report, now)
        return original(self, now)

    original = ReplicaSession.report
    patch.setattr(ReplicaSession, "report", report)


def part_of_a_record_confirmed(patch: pytest.MonkeyPatch) -> None:
    def report(self: ReplicaSession, now: float) -> bytes | None:
        if self._reported < 0 or self.master_offset < 0:
            return original(self, now)
        return self._note_report(self.position, now) if self.position > self._reported else None

    original = ReplicaSession.report
    patch.setattr(ReplicaSession, "report", report)


def records_not_checked(patch: pytest.MonkeyPatch) -> None:
    def unchecked(self: IncomingLog, staged: memoryview) -> tuple[int, Stop]:
        self._check = Check.NONE
        return original(self, staged)

    original = IncomingLog._append_scanned
    patch.setattr(IncomingLog, "_append_scanned", unchecked)


def parts_appended(patch: pytest.MonkeyPatch) -> None:
    def append(self: IncomingLog, staged: memoryview) -> tuple[int, Stop]:
        end, stop = original(self, staged)
        if stop is Stop.CUT:
            with staged[end:] as rest:
                self._log.append_copied(self._start + end, rest, 1)
            return len(staged), Stop.LIMIT
        return end, stop

    original = IncomingLog._append_scanned
    patch.setattr(IncomingLog, "_append_scanned", append)


def last_file_only(patch: pytest.MonkeyPatch) -> None:
    def start(self: MasterSession, requested: int) -> int:
        if requested == FROM_THE_START:
            end = self._log.sendable_offset
            return max(end - end % self._log.file_size, requested)
        return original(self, requested)

    original = MasterSession._start
    patch.setattr(MasterSession, "_start", start)


def confirmations_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaAcks, "drop", lambda self, replica: None)


def connections_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaAcks, "_counted", lambda self: [*self._acks.values()])


def any_confirmation_counts(patch: pytest.MonkeyPatch) -> None:
    def receive(self: MasterSession, data: bytes, now: float) -> bool:
        if self.position < 0:
            return original(self, data, now)
        acked = self.acked
        for offset in self._reader.feed(data):
            self.acked = offset
        return self.acked > acked

    original = MasterSession.receive
    patch.setattr(MasterSession, "receive", receive)


def end_of_file_not_copied(patch: pytest.MonkeyPatch) -> None:
    def fill_up(self: CommitLog, offset: int) -> None:
        segment = self._segment_to_copy(offset)
        segment.wrote_to(segment.size)

    patch.setattr(CommitLog, "fill_up_copied", fill_up)


def dispatched_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "dispatchable", lambda self: self.sendable_offset)


def dispatched_before_sync(patch: pytest.MonkeyPatch) -> None:
    def dispatchable(self: CommitLog) -> int:
        return min(self.readable_offset, self.confirmed_offset)

    # What the master confirms is on the replica's disk.
    confirm = LogCopy.confirm
    patch.setattr(LogCopy, "confirm", lambda self, offset: confirm(self, OFFSET_MAX))
    patch.setattr(CommitLog, "dispatchable", dispatchable)


def staged_bytes_kept(patch: pytest.MonkeyPatch) -> None:
    kept = bytearray()

    def prepare(self: IncomingLog, *arguments: Any) -> None:
        original(self, *arguments)
        self._staged = kept

    original = IncomingLog.__init__
    patch.setattr(IncomingLog, "__init__", prepare)


def sent_before_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "sendable_offset", CommitLog.readable_offset)


def acknowledged_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    def add(self: ReplicaAcks, waiter: Waiter) -> None:
        waiter.tell(True)

    patch.setattr(ReplicaAcks, "add", add)


def transfer_across_files(patch: pytest.MonkeyPatch) -> None:
    def next_transfer(self: MasterSession, now: float, *allowance: int) -> Transfer | None:
        size = min(self._log.sendable_offset - self.position, self._batch_size)
        if self.position < 0 or size <= 0:
            return original(self, now, *allowance)
        self.position += size
        return Transfer(self.position - size, size)

    original = MasterSession.next_transfer
    patch.setattr(MasterSession, "next_transfer", next_transfer)


def whole_log_shown_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "starts_unconfirmed", lambda config, *, in_group: False)


def queues_not_withheld(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueTable, "withhold", lambda self, log_offset: None)


def keys_of_the_tail_found(patch: pytest.MonkeyPatch) -> None:
    def answers(
        self: Reader, question: KeyQuestion, offsets: list[int], shown: int
    ) -> list[memoryview]:
        return original(self, question, offsets, OFFSET_MAX)

    original = Reader._answers
    patch.setattr(Reader, "_answers", answers)


def tail_indexed_twice(patch: pytest.MonkeyPatch) -> None:
    def begin(self: Engine) -> None:
        original(self)
        deriver = self.dispatcher._deriver
        deriver.policy = replace(deriver.policy, index_from=0)

    original = Engine._begin_dispatch
    patch.setattr(Engine, "_begin_dispatch", begin)


def numbers_of_the_tail_reused(patch: pytest.MonkeyPatch) -> None:
    def withhold(self: QueueTable, log_offset: int) -> None:
        original(self, log_offset)
        self.continue_numbering()

    original = QueueTable.withhold
    patch.setattr(QueueTable, "withhold", withhold)


def confirmed_end_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConfirmedFile, "note", lambda self, offset: None)


def confirmed_end_too_high(patch: pytest.MonkeyPatch) -> None:
    def update(self: ReplicaAcks) -> bool:
        self._log.keep_confirmed(self._log.max_offset)
        return original(self)

    original = ReplicaAcks._update
    patch.setattr(ReplicaAcks, "_update", update)


def confirmed_end_beyond_the_log(patch: pytest.MonkeyPatch) -> None:
    def begin(self: ConfirmedFile, log_end: int, **how: bool) -> None:
        original(self, log_end, **how)
        self.end = self.end._replace(offset=OFFSET_MAX)

    original = ConfirmedFile.begin
    patch.setattr(ConfirmedFile, "begin", begin)


MUTANTS: list[tuple[str, Patch, int]] = [
    # name, what is wrong, and the seed of a survey that catches it
    ("a replica confirms records before the sync", confirmed_before_sync, 0),
    ("a replica confirms a part of a record", part_of_a_record_confirmed, 0),
    ("a replica does not check records", records_not_checked, 0),
    ("a replica appends a part of a record", parts_appended, 0),
    ("a replica keeps bytes of a lost connection for the next one", staged_bytes_kept, 0),
    ("a replica does not copy the end of a file", end_of_file_not_copied, 0),
    ("a replica shows messages before the sync", dispatched_before_sync, 8),
    ("a master sends only its last file", last_file_only, 1),
    ("a master sends records before the sync", sent_before_sync, 1),
    ("a transfer crosses the end of a file", transfer_across_files, 0),
    ("a confirmation of bytes that were not sent counts", any_confirmation_counts, 0),
    ("a put is acknowledged without a confirmation", acknowledged_without_confirmation, 0),
    ("consumers see messages that no replica has", dispatched_without_confirmation, 0),
    ("a restart shows messages that no replica has", whole_log_shown_after_a_restart, 0),
    ("queues keep messages that no replica has", queues_not_withheld, 0),
    ("queries find messages that no replica has", keys_of_the_tail_found, 0),
    ("messages that no replica had are indexed twice", tail_indexed_twice, 0),
    ("numbers of messages that no replica has are reused", numbers_of_the_tail_reused, 0),
    ("a killed master forgets what was confirmed", confirmed_end_not_kept, 0),
    ("a master keeps a confirmed end before replicas confirm it", confirmed_end_too_high, 0),
    ("a confirmed end beyond the log counts", confirmed_end_beyond_the_log, 0),
]
OTHERS = (
    "a replica connects before its log is synced",
    "a replica counts twice after a lost connection",
)
"""The bugs that have a test of their own."""


@pytest.mark.parametrize(
    ("patch", "first"), [mutant[1:] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS]
)
def test_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, patch: Patch, first: int) -> None:
    patch(monkeypatch)
    config = pair_config("sync", "sync", property_crc=True)
    trial = partial(pair_survey, config, share=0.2, promotion_share=0)
    expect_violation(trial, range(first, first + ATTEMPTS))


def test_a_replica_that_connects_before_a_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pair_config("sync", "sync", property_crc=True)
    damage_survey(config, random.Random(0))
    first_report_before_sync(monkeypatch)
    with pytest.raises(Violation, match="I1"):
        damage_survey(config, random.Random(0))


def test_a_replica_that_counts_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pair_config("sync", "sync", property_crc=True, in_sync_replicas=3)
    check_count_of_replicas(config)
    confirmations_kept(monkeypatch)
    check_count_of_replicas(config)  # the earlier connection of a replica does not count anyway
    connections_counted(monkeypatch)
    with pytest.raises(Violation, match="R8"):
        check_count_of_replicas(config)
