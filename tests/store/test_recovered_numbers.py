"""After a recovery that derives queues again, numbers continue after the existing messages."""

import shutil
from pathlib import Path

import pytest

from firetrail import Message, Store


@pytest.mark.parametrize("unclean", [False, True], ids=["closed", "unclean"])
def test_numbers_continue_after_queues_were_derived_again(tmp_path: Path, unclean: bool) -> None:
    with Store.open(tmp_path) as store:
        for _ in range(3):
            store.put(Message("t", b"old"))
    shutil.rmtree(tmp_path / "consumequeue")
    if unclean:
        (tmp_path / "abort").touch()
    with Store.open(tmp_path) as store:
        assert store.put(Message("t", b"new")).queue_offset == 3
        store.wait_dispatched()
        assert [message.body for message in store.read("t")] == [b"old", b"old", b"old", b"new"]
