"""Ctrl-C in the middle of a put: wherever it comes, the message is stored or it is not."""

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.helpers import bodies
from tests.store.conftest import OpenStore

from firetrail import Message, Store
from firetrail.storage import buffers
from firetrail.store.log import commit_log

pytestmark = pytest.mark.stepped_threads

FILES = (commit_log.__file__, buffers.__file__)
# The interpreter checks for signals after calls, not between taking a lock and the `try` after it.
NOT_HERE = ("try:", "self._lock.release()")


def interrupted_at(number: int, action: Callable[[], object]) -> bool:
    """Run an action, interrupted at its ``number``-th line; return whether it has that many."""
    lines = 0

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line not in NOT_HERE:
            lines += 1
            if lines == number:
                raise KeyboardInterrupt
        return on_line

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        return on_line if frame.f_code.co_filename in FILES else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def put(store: Store, body: bytes) -> None:
    store.put(Message("T", body))


def put_batch(store: Store, body: bytes) -> None:
    store.put_batch([Message("T", body[:1500]), Message("T", body[1500:])])


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("action", [put, put_batch])
@pytest.mark.parametrize("size", [3000, 300])  # with and without the end of a file
def test_a_put_after_an_interrupted_one_succeeds(
    open_store: OpenStore, action: Callable[[Store, bytes], None], size: int, pool: bool
) -> None:
    store = open_store(write_buffer_pool=pool, write_buffer_count=2, log=4096, units=1000)
    number = 1

    def slowly() -> None:
        store._engine.log.appender.pause()  # the common case is one compiled step
        action(store, b"interrupted".ljust(size, b"."))

    while interrupted_at(number, slowly):
        put(store, b"%d" % number)
        number += 1
    assert number > 10
    store.flush()
    assert store.wait_dispatched()
    assert not store.refusal
    offsets = [message.queue_offset for message in store.read("T")]
    assert offsets == list(range(len(offsets)))
    stored = bodies(store)
    assert [body for body in stored if body.isdigit()] == [b"%d" % n for n in range(1, number)]
    for body in stored:
        assert body.isdigit() or body.strip(b".") in (b"interrupted", b"")
    ends = [message.physical_offset + message.size for message in store.read("T")]
    starts = [message.physical_offset for message in store.read("T")]
    assert all(
        start == end or start % 4096 == 0 for start, end in zip(starts[1:], ends, strict=False)
    )
    store.close()
    again = open_store()
    assert again.recovery.clean
    assert bodies(again) == stored
