"""The key-value store of a name server: values are durable before they are acknowledged."""

import asyncio
import errno
from pathlib import Path

import pytest
from tests.helpers import Machine

from firetrail.namesrv.kv import KVConfig
from firetrail.system import SYSTEM


async def test_a_value_is_durable_when_the_put_returns(tmp_path: Path) -> None:
    machine = Machine()
    path = tmp_path / "kv" / "kvConfig.json"
    await KVConfig(path, machine.system).put("n", "k", "v")
    assert KVConfig(path, SYSTEM).get("n", "k") == "v"
    synced = [call.path for call in machine.files.calls if call.operation == "sync_folder"]
    assert synced[-1] == path.parent, "the name of the file is not durable without its folder"


async def test_a_value_that_could_not_be_written_is_not_shown(tmp_path: Path) -> None:
    machine = Machine()
    kv = KVConfig(tmp_path / "kvConfig.json", machine.system)
    await kv.put("n", "k", "old")
    machine.files.fail("sync", errno.EIO)
    with pytest.raises(OSError, match=r"Input/output"):
        await kv.put("n", "k", "new")
    assert kv.get("n", "k") == "old"
    assert KVConfig(tmp_path / "kvConfig.json", SYSTEM).get("n", "k") == "old"


async def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfig(path, SYSTEM)
    await asyncio.gather(*(kv.put("n", f"k{number}", "v") for number in range(20)))
    await asyncio.gather(*(kv.delete("n", f"k{number}") for number in range(0, 20, 2)))
    assert KVConfig(path, SYSTEM).namespace("n") == {
        f"k{number}": "v" for number in range(1, 20, 2)
    }


@pytest.mark.parametrize("is_new", [True, False])
async def test_only_its_owner_can_read_the_file(tmp_path: Path, is_new: bool) -> None:
    path = tmp_path / "kv" / "kvConfig.json"
    path.parent.mkdir()
    if not is_new:  # Java's is readable for everybody
        path.write_text('{"configTable":{"n":{"old":"v"}}}')
        path.chmod(0o644)
    kv = KVConfig(path, SYSTEM)
    await kv.put("n", "k", "v")
    await kv.delete("n", "k")
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert KVConfig(path, SYSTEM).get("n", "old") == (None if is_new else "v")
