"""Reasons for which puts are refused."""

import logging

import pytest

from firetrail.store.admission.gate import Closure, Gate
from firetrail.system import SYSTEM


def test_each_reason_is_lifted_on_its_own() -> None:
    gate = Gate(SYSTEM.threads)
    assert gate.refusal == ""
    gate.shut(Closure.DISK_FULL, "93% used")
    gate.shut(Closure.SLAVE)
    assert gate.refusal == "the disk is nearly full: 93% used; the store is a slave"
    gate.lift(Closure.DISK_FULL)
    gate.lift(Closure.DISK_FULL)
    assert gate.refusal == "the store is a slave"
    gate.lift(Closure.SLAVE)
    assert gate.refusal == ""


def test_the_newest_detail_counts() -> None:
    gate = Gate(SYSTEM.threads)
    gate.shut(Closure.DISK_FULL, "91% used")
    gate.shut(Closure.DISK_FULL, "95% used")
    assert gate.refusal == "the disk is nearly full: 95% used"


def test_shut_for_good_takes_no_lock() -> None:
    gate = Gate(SYSTEM.threads)
    with gate._guard:  # which a thread that is gone may hold
        gate.shut_for_good("not here")
    assert gate.refusal == "not here"


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gate = Gate(SYSTEM.threads)
    gate.shut(Closure.CLOSED)
    gate.lift(Closure.CLOSED)
    gate.lift(Closure.DISK_FULL)
    assert caplog.messages == []
    for used in (91, 92):
        gate.shut(Closure.DISK_FULL, f"{used}% used")
    gate.lift(Closure.DISK_FULL)
    assert caplog.messages == [
        "the store refuses messages from now on: the disk is nearly full: 91% used",
        "the store accepts messages again; it refused them because the disk is nearly full: 92% "
        "used",
    ]


def test_only_the_reason_that_is_new_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A slave always refuses puts, but takes the messages of its master unless its disk is full."""
    gate = Gate(SYSTEM.threads)
    gate.shut(Closure.SLAVE)
    gate.shut(Closure.DISK_FULL, "91% used")
    gate.shut(Closure.FAILED, "EIO")
    gate.lift(Closure.DISK_FULL)
    gate.lift(Closure.FAILED)
    assert caplog.messages == [
        "the store refuses messages from now on: the disk is nearly full: 91% used",
        "the store refuses messages from now on: writing was given up: EIO",
        "the store accepts messages again; it refused them because writing was given up: EIO",
    ]
