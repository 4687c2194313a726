"""The write-buffer pool: collecting and committing writes, and returning buffers."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine

from firetrail.storage.buffers import WriteBufferPool
from firetrail.storage.segment import Segment

SIZE = 64 << 10
BUFFER = 1000


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def segment(machine: Machine, tmp_path: Path) -> Iterator[Segment]:
    segment = Segment.create(machine.system, tmp_path / "a", 0, SIZE)
    yield segment
    segment.close()


def pool_of(machine: Machine, count: int) -> WriteBufferPool:
    return WriteBufferPool(machine.system, count, BUFFER)


def write(pool: WriteBufferPool, segment: Segment, content: bytes) -> bool:
    buffer = pool.reserve(segment, len(content))
    if buffer is None:
        return False
    at = segment.wrote - buffer.start
    buffer.view[at : at + len(content)] = content
    segment.wrote += len(content)
    return True


def content(segment: Segment) -> bytes:
    return bytes(segment.view[: segment.committed])


def test_nothing_is_readable_before_the_commit(machine: Machine, segment: Segment) -> None:
    pool = pool_of(machine, 2)
    assert write(pool, segment, b"abc")
    assert (segment.wrote, segment.committed) == (3, 0)
    assert bytes(segment.view[:3]) == bytes(3)
    pool.commit(segment)
    assert (segment.committed, content(segment)) == (3, b"abc")


def test_a_buffer_goes_on_after_a_commit(machine: Machine, segment: Segment) -> None:
    pool = pool_of(machine, 1)
    for _ in range(3):
        assert write(pool, segment, b"abc")
        pool.commit(segment)
    assert content(segment) == b"abc" * 3


def test_a_commit_of_nothing_writes_nothing(machine: Machine, segment: Segment) -> None:
    pool = pool_of(machine, 1)
    pool.commit(segment)
    assert segment.committed == 0


def test_several_buffers_are_one_write(machine: Machine, segment: Segment) -> None:
    pool = pool_of(machine, 3)
    for letter in b"abc":
        assert write(pool, segment, bytes([letter]) * 600)
    machine.files.forget()
    pool.commit(segment)
    assert machine.files.count("write") == 1
    assert content(segment) == b"a" * 600 + b"b" * 600 + b"c" * 600


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_in_use_until_the_commit(machine: Machine, segment: Segment, count: int) -> None:
    pool = pool_of(machine, count)
    written = b""
    for _ in range(3):
        for _ in range(count):
            assert write(pool, segment, b"x" * 600)
            written += b"x" * 600
        assert not write(pool, segment, b"y" * 600)
        pool.commit(segment)
    assert content(segment) == written


def test_a_message_larger_than_a_buffer_gets_its_own(machine: Machine, segment: Segment) -> None:
    pool = pool_of(machine, 1)
    assert write(pool, segment, b"a" * 10)
    assert write(pool, segment, b"b" * 5000)
    pool.commit(segment)
    assert write(pool, segment, b"c" * 10)
    pool.commit(segment)
    assert content(segment) == b"a" * 10 + b"b" * 5000 + b"c" * 10
    assert all(buffer.size == BUFFER for buffer in pool._waiting), "the large one is not kept"


@pytest.mark.parametrize("count", [1, 2])
def test_the_next_segment_starts_at_its_beginning(
    machine: Machine, segment: Segment, tmp_path: Path, count: int
) -> None:
    pool = pool_of(machine, count)
    assert write(pool, segment, b"a" * 700)
    pool.commit(segment)
    segment.wrote_to(SIZE)
    following = Segment.create(machine.system, tmp_path / "b", SIZE, SIZE)
    assert write(pool, following, b"b" * 100)
    pool.commit(following)
    assert content(following) == b"b" * 100
    assert content(segment).rstrip(b"\0") == b"a" * 700
    following.close()


def test_a_failed_commit_can_be_tried_again(machine: Machine, segment: Segment) -> None:
    """Unlike a sync: the bytes are still in the buffer."""
    pool = pool_of(machine, 2)
    assert write(pool, segment, b"abc")
    machine.files.fail("write", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        pool.commit(segment)
    assert segment.committed == 0
    assert write(pool, segment, b"def")
    pool.commit(segment)
    assert content(segment) == b"abcdef"


def test_a_reserved_place_that_was_not_used(machine: Machine, segment: Segment) -> None:
    pool = pool_of(machine, 1)
    assert pool.reserve(segment, 10) is not None
    assert write(pool, segment, b"abc")
    pool.commit(segment)
    assert content(segment) == b"abc"


def test_buffers_can_be_kept_in_memory(machine: Machine) -> None:
    pool = pool_of(machine, 3)
    machine.files.fail("lock_memory", errno.EPERM, skip=2)
    with pytest.raises(OSError, match="Operation not permitted"):
        pool.lock_memory()
    assert machine.files.count("lock_memory") == 3
