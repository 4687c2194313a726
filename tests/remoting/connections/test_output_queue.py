"""Output is handed over in portions, and counts with what it keeps in memory."""

import mmap

from firetrail.remoting.connections.output_queue import PORTION, OutputQueue, released


def queue_of(*pieces: bytes | memoryview) -> OutputQueue:
    queue = OutputQueue()
    queue.add(pieces, sum(map(len, pieces)))
    return queue


def test_output_that_fits_is_taken_as_it_is() -> None:
    first, second = b"one", memoryview(b"two")
    queue = queue_of(first, second)
    taken = queue.take()
    assert taken[0] is first
    assert taken[1] is second
    assert (queue.size, queue.take()) == (0, [])


def test_longer_output_is_taken_in_portions() -> None:
    pieces = [b"a" * 10, b"b" * (2 * PORTION), b"c" * (PORTION - 10), b"d"]
    queue = queue_of(*pieces)
    taken = []
    while queue.size:
        before = queue.size
        taken.append(b"".join(queue.take()))
        assert queue.size == before - len(taken[-1])
    assert [len(each) for each in taken] == [PORTION, PORTION, PORTION, 1]
    assert b"".join(taken) == b"".join(pieces)


def test_the_end_of_a_long_piece_does_not_keep_all_of_it() -> None:
    """A peer that reads all but the end must not keep more than is counted."""
    queue = queue_of(bytes(10 * PORTION))
    while queue.size:
        (piece,) = queue.take()
        assert isinstance(piece, memoryview)
        assert len(piece.obj) <= 2 * PORTION  # type: ignore[arg-type]


def test_views_of_files_are_not_copied() -> None:
    with mmap.mmap(-1, 4 * PORTION) as file:
        view = memoryview(file)[:10]
        assert released(view) is view
        view.release()
