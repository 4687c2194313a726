"""A process that temporarily cannot open files: puts are refused, and resume afterwards."""

import errno
from pathlib import Path

import pytest
from tests.helpers import Machine, bodies, eventually, put_all, small_config

from firetrail import Message, PutStatus, Store

pytestmark = pytest.mark.stepped_threads


@pytest.mark.parametrize("operation", ["open", "sync_folder"])
def test_at_the_next_file_of_the_log(machine: Machine, root: Path, operation: str) -> None:
    with Store.open(root, small_config(), system=machine.system) as store:
        put_all(store, [b"first"])
        machine.files.fail(operation, errno.EMFILE, "commitlog")
        put = [b"%d" % number * 500 for number in range(20)]
        results = [store.try_put(Message("T", body)) for body in put]
        assert results[-1].status is PutStatus.UNKNOWN_ERROR
        assert "Too many open files" in results[-1].detail
        machine.files.heal()
        put_all(store, [b"last"])
        taken = [body for body, result in zip(put, results, strict=True) if result.ok]
        assert bodies(store) == [b"first", *taken, b"last"]


@pytest.mark.parametrize("operation", ["open", "sync_folder"])
def test_dispatch_waits_for_a_descriptor_at_the_next_file_of_a_queue(
    machine: Machine, root: Path, operation: str
) -> None:
    with Store.open(root, small_config(units=4), system=machine.system) as store:
        put_all(store, [b"%d" % number for number in range(4)])
        machine.files.fail(operation, errno.EMFILE, "consumequeue")
        store.put(Message("T", b"4"))
        eventually(lambda: not store.try_put(Message("T", b"refused")).ok)
        accepted = store.log_range
        machine.files.heal()
        eventually(lambda: store.try_put(Message("T", b"last")).ok)
        assert store.wait_dispatched(20)
        found = bodies(store)
        assert found[:5] == [b"0", b"1", b"2", b"3", b"4"] and found[-1] == b"last"
        assert store.log_range > accepted


def test_at_the_name_of_a_new_queue_while_files_are_deleted(machine: Machine, root: Path) -> None:
    """Retention took it for a failed sync, and the store refused all further messages."""
    with Store.open(root, small_config(), system=machine.system) as store:
        put_all(store, [b"%d" % number * 500 for number in range(20)])
        store.flush()
        machine.files.fail("sync_folder", errno.EMFILE, "consumequeue")
        put_all(store, [b"new"], topic="U")
        store.delete_expired(forced=True)
        machine.files.heal()
        put_all(store, [b"last"], topic="U")
        assert bodies(store, "U") == [b"new", b"last"]
        store.delete_expired(forced=True)
        assert store.log_range[0] > 0
