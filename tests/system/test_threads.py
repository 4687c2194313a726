"""Threads of the seam: daemons with a name, calls in order, items computed ahead."""

import threading
from collections.abc import Iterator

import pytest
from tests.helpers import PATIENCE_S, eventually

from firetrail.system import Threads

threads = Threads()


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_a_thread_has_its_name_and_does_not_keep_the_process() -> None:
    seen: list[tuple[str, bool]] = []

    def look() -> None:
        here = threading.current_thread()
        seen.append((here.name, here.daemon))

    thread = threads.thread("firetrail-test", look)
    assert not thread.is_alive()
    thread.start()
    thread.join(PATIENCE_S)
    assert seen == [("firetrail-test", True)]


def test_results_have_the_order_of_the_items() -> None:
    together = threading.Barrier(2, timeout=PATIENCE_S)

    def double(number: int) -> int:
        together.wait()  # raises unless two calls run at the same time
        return number * 2

    assert list(threads.map("firetrail-test", 2, double, range(10))) == list(range(0, 20, 2))
    assert not threads_named("firetrail-test")


class TestAhead:
    def test_items_are_computed_in_advance_up_to_the_limit(self) -> None:
        computed: list[int] = []

        def numbers() -> Iterator[int]:
            for number in range(10):
                computed.append(number)
                yield number

        items = threads.ahead("firetrail-ahead", numbers(), 2)
        assert next(items) == 0
        eventually(lambda: len(computed) == 4)  # one is taken, two wait, one has no place
        assert list(items) == list(range(1, 10))
        assert not threads_named("firetrail-ahead")

    def test_an_error_comes_after_the_items_before_it(self) -> None:
        items = threads.ahead("firetrail-ahead", (1 // (2 - n) for n in range(5)), 8)
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(ZeroDivisionError):
            next(items)
        assert not threads_named("firetrail-ahead")

    def test_the_thread_ends_with_a_reader_that_stops(self) -> None:
        items = threads.ahead("firetrail-ahead", iter(range(1000)), 1)
        assert next(items) == 0
        items.close()
        assert not threads_named("firetrail-ahead")
