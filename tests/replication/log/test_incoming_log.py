"""Bytes of a master become whole, checked records in the log of a replica."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replication.logs import FILE_SIZE, MemoryLog, written_log

from firetrail.errors import DivergedError, ReplicationError
from firetrail.replication.log.incoming_log import IncomingLog


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The log of a master, two and a half files long."""
    return written_log(tmp_path_factory.mktemp("master"), 2.5)


def feed(incoming: IncomingLog, content: bytes, sizes: list[int], offset: int = 0) -> None:
    """Pass on pieces of these sizes, cut at the ends of files as a master does."""
    at = number = 0
    while at < len(content):
        size = min(sizes[number % len(sizes)], FILE_SIZE - (offset + at) % FILE_SIZE)
        incoming.receive(offset + at, memoryview(content)[at : at + size])
        at += size
        number += 1


@given(sizes=st.lists(st.integers(1, 900), min_size=1, max_size=20))
def test_a_log_cut_anywhere_is_copied_byte_for_byte(log: bytes, sizes: list[int]) -> None:
    target = MemoryLog()
    feed(IncomingLog(target, 0), log, sizes)
    assert target.content == log


@given(cut=st.integers(0, 5000))
def test_only_whole_records_are_appended(log: bytes, cut: int) -> None:
    target = MemoryLog()
    incoming = IncomingLog(target, 0)
    feed(incoming, log[:cut], [300])
    copied = len(target.content)
    assert log.startswith(bytes(target.content))
    again = IncomingLog(target, copied)  # after a lost connection
    feed(again, log[copied:], [300], copied)
    assert target.content == log


@given(at=st.integers(0, 5000), bit=st.integers(0, 7))
def test_a_flipped_bit_stops_the_copy_before_its_record(log: bytes, at: int, bit: int) -> None:
    at %= len(log)
    damaged = bytearray(log)
    damaged[at] ^= 1 << bit
    target = MemoryLog()
    try:
        feed(IncomingLog(target, 0), bytes(damaged), [700])
    except ReplicationError:
        assert len(target.content) <= at
    # Without a whole-record checksum, fields around the body are checked by their structure only.
    assert len(target.content) <= len(log)


def test_a_damaged_body_is_named_with_its_offset(log: bytes) -> None:
    target = MemoryLog()
    damaged = bytearray(log)
    at = log.index(b"33333")
    damaged[at] ^= 1
    with pytest.raises(ReplicationError, match=r"at offset \d+ .*\(BODY_CRC\).*firetrail fsck"):
        feed(IncomingLog(target, 0), bytes(damaged), [5000])
    assert 0 < len(target.content) < at


def test_a_master_that_continues_elsewhere_is_refused(log: bytes) -> None:
    incoming = IncomingLog(MemoryLog(), 0)
    feed(incoming, log[:100], [100])
    with pytest.raises(DivergedError, match="from offset 50, but the replica has it up to 100"):
        incoming.receive(50, memoryview(log)[50:60])


def test_a_transfer_across_the_end_of_a_file_means_another_file_size(log: bytes) -> None:
    incoming = IncomingLog(MemoryLog(), 0)
    with pytest.raises(ReplicationError, match="set mappedFileSizeCommitLog of the replica"):
        incoming.receive(0, memoryview(log)[: FILE_SIZE + 1])


def test_a_record_longer_than_its_file_is_damage() -> None:
    head = (FILE_SIZE + 1).to_bytes(4, "big") + (-626843481).to_bytes(4, "big", signed=True)
    with pytest.raises(ReplicationError, match=r"\(SIZE\)"):
        IncomingLog(MemoryLog(), 0).receive(0, memoryview(head))


def test_a_log_may_begin_at_a_later_file(log: bytes) -> None:
    target = MemoryLog(min_offset=FILE_SIZE)
    feed(IncomingLog(target, FILE_SIZE), log[FILE_SIZE:], [333], FILE_SIZE)
    assert target.content == log[FILE_SIZE:]


def test_bytes_after_a_blank_record_are_not_copied(log: bytes) -> None:
    """A Java master may have the rest of an older record there."""
    end = log[:FILE_SIZE].rindex((-875286124).to_bytes(4, "big", signed=True)) + 4
    dirty = log[:end] + b"\x01" * (FILE_SIZE - end) + log[FILE_SIZE:]
    target = MemoryLog()
    feed(IncomingLog(target, 0), dirty, [100])
    assert target.content == log
