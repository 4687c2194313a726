"""Stepped threads: they run while the test waits, and only one thread uses them."""

import threading
from collections.abc import Iterator

import pytest
from tests.harness.stepped import SteppedMachine, stepped_machine
from tests.helpers import eventually


@pytest.fixture
def machine() -> Iterator[SteppedMachine]:
    with stepped_machine() as machine:
        yield machine


def test_a_thread_runs_only_while_the_test_waits(machine: SteppedMachine) -> None:
    steps: list[str] = []
    wake = machine.system.threads.event()

    def work() -> None:
        steps.append("begun")
        wake.wait()
        steps.append("woken")

    thread = machine.system.threads.thread("firetrail-stepped", work)
    thread.start()
    assert steps == []
    machine.settle()
    assert steps == ["begun"]
    wake.set()
    assert steps == ["begun"]
    thread.join()
    assert steps == ["begun", "woken"]


def test_time_passes_when_all_threads_wait(machine: SteppedMachine) -> None:
    ticks: list[float] = []
    clock, never = machine.system.clock, machine.system.threads.event()

    def tick() -> None:
        while not never.wait(1800):
            ticks.append(clock.monotonic())

    machine.system.threads.thread("firetrail-ticks", tick).start()
    began = clock.monotonic()
    clock.sleep_ms(3_700_000)
    assert [time - began for time in ticks] == [1800, 3600]
    eventually(lambda: clock.monotonic() > began + 3700.1)


def test_another_thread_of_the_test_is_refused(machine: SteppedMachine) -> None:
    errors: list[AssertionError] = []
    lock = machine.system.threads.lock()

    def use() -> None:
        try:
            lock.acquire()
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "only one thread of a test" in str(errors[0])
