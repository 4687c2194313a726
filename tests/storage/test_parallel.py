"""Calls for many items: in order, in several threads, and their errors."""

import threading

import pytest
from tests.helpers import PATIENCE_S

from firetrail.storage.parallel import SHARE, THREADS, map_in_threads
from firetrail.system import SYSTEM


@pytest.mark.parametrize("count", [0, 1, SHARE, SHARE + 1, 10 * SHARE + 3])
def test_the_order_is_kept(count: int) -> None:
    assert list(map_in_threads(SYSTEM.threads, lambda number: number * 2, range(count))) == [
        2 * n for n in range(count)
    ]


def test_few_items_run_in_the_calling_thread() -> None:
    assert set(
        map_in_threads(SYSTEM.threads, lambda _: threading.current_thread(), range(SHARE))
    ) == {threading.current_thread()}


def test_many_items_run_at_the_same_time() -> None:
    together = threading.Barrier(THREADS, timeout=PATIENCE_S)
    marks = {number * SHARE for number in range(THREADS)}

    def look(number: int) -> int:
        if number in marks:
            together.wait()  # raises unless all threads come here
        return number

    assert (
        len(list(map_in_threads(SYSTEM.threads, look, range(THREADS * SHARE)))) == THREADS * SHARE
    )


def test_an_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(map_in_threads(SYSTEM.threads, lambda number: 1 // (number - 40), range(4 * SHARE)))
