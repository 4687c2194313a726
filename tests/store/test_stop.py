"""Stops that must not take long: the next opening derives what is left, and nothing is lost."""

import logging
from pathlib import Path

import pytest
from tests.helpers import Machine, ManualClock, small_config
from tests.store.checks import checked
from tests.stores import derived

from firetrail import Message, Store
from firetrail.store.dispatch.derivation import Step
from firetrail.store.log import progress_log
from firetrail.store.log.progress_log import ProgressLog

pytestmark = pytest.mark.stepped_threads

TOPICS = 30


def put_to_new_topics(store: Store) -> None:
    for number in range(TOPICS):
        store.put(Message(f"t{number}", b"%d" % number, keys=["k"]))


def check_complete(root: Path) -> None:
    """Check that every message is found by queue and by key, and that the files are good."""
    with Store.open(root) as store:
        assert not store.recovery.clean
        for number in range(TOPICS):
            assert [message.body for message in store.read(f"t{number}")] == [b"%d" % number]
            assert len(store.query(f"t{number}", "k")) == 1
            assert store.max_offset(f"t{number}") == 1
    report = checked(root)
    assert report.ok and not report.warnings
    with Store.open(root) as store:
        assert store.recovery.clean


def test_a_stop_without_time_to_dispatch_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = Store.open(tmp_path / "store", small_config())
    dispatcher = store._engine.dispatcher
    dispatcher._is_over = lambda: True  # nothing is dispatched any more
    put_to_new_topics(store)
    assert store.dispatch_behind
    store.close(within_s=0)
    assert "bytes of the log left to dispatch; the next start dispatches them" in caplog.text
    assert (tmp_path / "store" / "abort").exists()
    check_complete(tmp_path / "store")


def test_in_the_middle_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time runs out when some of the new queues exist."""
    root = tmp_path / "store"
    store = Store.open(root, small_config())
    apply = Step.apply
    looks = iter(range(TOPICS))

    def apply_some(step: Step, *parts: object, is_over: object = None, **options: object) -> None:
        apply(step, *parts, is_over=lambda: next(looks) > TOPICS // 2, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Step, "apply", apply_some)
    dispatcher = store._engine.dispatcher
    dispatcher._stepping.acquire()
    put_to_new_topics(store)
    dispatcher._stepping.release()
    store.close(within_s=60)
    monkeypatch.undo()
    there = len(list((root / "consumequeue").iterdir()))
    assert 0 < there < TOPICS
    check_complete(root)


def test_without_time_to_sync(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = Store.open(root, small_config())
    put_to_new_topics(store)
    assert store.wait_dispatched()
    store.close(within_s=0)
    assert (root / "abort").exists()
    assert len(derived(root)[0]) == TOPICS
    check_complete(root)


def test_a_stop_without_space_to_dispatch_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    store = Store.open(tmp_path / "store", small_config(), system=machine.system)
    machine.files.fill_disk("consumequeue")
    with store._engine.dispatcher.paused():  # which would otherwise refuse some of the messages
        put_to_new_topics(store)
    store.close()
    assert "bytes of the log left to dispatch, which the next start has to recover" in caplog.text
    check_complete(tmp_path / "store")


def test_a_stop_with_time_enough_is_clean(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", small_config())
    put_to_new_topics(store)
    store.close(within_s=600)
    with Store.open(tmp_path / "store") as store:
        assert store.recovery.clean


def test_progress_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    work = ProgressLog(clock, "recovering", 1 << 20, 5 << 20)
    work.note(2 << 20)
    assert not caplog.records
    clock._pushed_s += progress_log.INTERVAL_S
    work.note(3 << 20)
    work.note(4 << 20)
    assert [record.getMessage() for record in caplog.records] == [
        "recovering: 2.0 MiB of 4.0 MiB done"
    ]
