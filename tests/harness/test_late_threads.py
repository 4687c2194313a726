"""Late threads: only those of the seam, and only with the option."""

import threading

import pytest
from tests.harness import late_threads
from tests.harness.late_threads import LateThreads
from tests.helpers import PATIENCE_S

from firetrail.system import SYSTEM, Clock


class Pauses:
    """Counts pauses instead of making them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def sleep(self, seconds: float) -> None:
        assert 0 <= seconds <= late_threads.PAUSE_S
        self.names.append(threading.current_thread().name)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """The pauses of late threads, which are installed for the test."""
    pauses = Pauses()
    monkeypatch.setattr(late_threads, "time", pauses)
    LateThreads(1).install(monkeypatch)
    return pauses


def test_a_thread_of_the_seam_pauses_when_it_starts_and_has_waited(pauses: Pauses) -> None:
    event, lock, condition = (
        SYSTEM.threads.event(),
        SYSTEM.threads.lock(),
        SYSTEM.threads.condition(),
    )

    def work() -> None:
        event.wait()
        with lock:
            pass
        with condition:
            condition.wait(0)
        Clock().sleep_ms(0)

    thread = SYSTEM.threads.thread("firetrail-late", work)
    thread.start()
    event.set()
    thread.join(PATIENCE_S)
    assert pauses.names.count("firetrail-late") >= 5  # one of them is the sleep itself


def test_other_threads_do_not_pause(pauses: Pauses) -> None:
    lock, event = SYSTEM.threads.lock(), SYSTEM.threads.event()
    event.set()
    assert event.wait()
    for _ in range(100):
        with lock:
            assert lock.locked()
    assert not lock.locked()
    assert not pauses.names
