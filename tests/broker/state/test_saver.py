"""Saving of tables: changes share writes, which are prompt if a caller waits for them."""

import asyncio
import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE_S

from firetrail.broker.state.saver import Saver
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import TopicConfig, TopicConfigTable
from firetrail.settings.config_file import ConfigFile
from firetrail.system import System


class Slow(ConfigFile):
    """A file that takes a while to write."""

    def __init__(self, folder: Path) -> None:
        super().__init__(System(), folder, "topics.json")
        self.saved: list[dict[str, Any]] = []

    def save(self, value: dict[str, Any]) -> None:
        time.sleep(0.01)
        super().save(value)
        self.saved.append(value)


async def test_changes_in_a_row_share_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.broker.state.saver.PAUSE_FACTOR", 1e6)
    monkeypatch.setattr("firetrail.broker.state.saver.PAUSE_MAX_S", 1e6)
    file, value = Slow(tmp_path), {"n": 0}
    saver = Saver(file, lambda: dict(value))
    for number in range(20):
        value["n"] = number
        saver.changed()
        await asyncio.sleep(0.005)
        while number >= 10 and not file.saved:  # the first ones come during the write
            await asyncio.sleep(0.001)
    assert [saved["n"] for saved in file.saved] == [0]
    await saver.saved()
    assert [saved["n"] for saved in file.saved] == [0, 19]
    value["n"] = 20
    saver.changed()
    await saver.stop()
    assert json.loads(file.path.read_bytes())["n"] == 20


async def test_a_waiting_caller_ends_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.broker.state.saver.PAUSE_FACTOR", 1e6)
    file = Slow(tmp_path)
    saver = Saver(file, lambda: {"a": 1})
    for _ in range(3):
        saver.changed()
        await saver.saved()
    assert len(file.saved) == 3


async def test_a_change_during_a_pause_is_written_after_it(tmp_path: Path) -> None:
    file, value = Slow(tmp_path), {"n": 0}
    saver = Saver(file, lambda: dict(value))
    saver.changed()
    while not file.saved:
        await asyncio.sleep(0.001)
    value["n"] = 1
    saver.changed()
    while len(file.saved) < 2:
        await asyncio.sleep(0.001)
    assert json.loads(file.path.read_bytes())["n"] == 1


async def test_a_body_is_encoded_and_saved(tmp_path: Path) -> None:
    file = Slow(tmp_path)
    table = TopicConfigTable({"T": TopicConfig("T")})
    saver = Saver(file, lambda: table)
    saver.changed()
    await saver.saved()
    assert file.load(TopicConfigTable) == table


async def test_waiting_includes_changes_without_a_due_save(tmp_path: Path) -> None:
    """Once, the deletion of a topic was answered before its offsets were saved."""
    file = Slow(tmp_path)
    saver = Saver(file, lambda: {"n": 1})
    saver.note_change()
    await saver.saved()
    assert file.saved == [{"n": 1}]


async def test_waiting_callers_get_the_error_of_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Slow):
        is_full = True

        def save(self, value: dict[str, Any]) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            super().save(value)

    monkeypatch.setattr("firetrail.broker.state.saver.RETRY_S", 0.05)
    file = Full(tmp_path)
    saver = Saver(file, lambda: {"a": 1})
    for _ in range(2):
        saver.changed()
        with pytest.raises(RequestError, match=r"topics\.json cannot be saved.*No space left"):
            await saver.saved()
    file.is_full = False
    await saver.saved()
    assert file.saved == [{"a": 1}]
    await saver.stop()


async def test_running_out_of_memory_loses_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.broker.state.saver.RETRY_S", 0.01)
    file, wants = Slow(tmp_path), [MemoryError(), RuntimeError("can't start new thread")]

    def content() -> dict[str, Any]:
        if wants:
            raise wants.pop()
        return {"a": 1}

    saver = Saver(file, content)
    saver.changed()
    while not file.saved:
        await asyncio.sleep(0.01)
    await saver.stop()


async def test_a_failed_write_during_the_stop_ends_all_waits(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Failing(Slow):
        def save(self, value: dict[str, Any]) -> None:
            begun.set()
            assert go_on.wait(PATIENCE_S)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    saver = Saver(Failing(tmp_path), dict)
    saver.changed()
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    waiting = asyncio.create_task(saver.saved())  # while it is being written
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, go_on.set)
    with pytest.raises(OSError, match="Input/output error"):
        await saver.stop()
    with pytest.raises(RequestError, match="Input/output error"):
        await waiting
