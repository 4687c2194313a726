"""Offsets in a file, in the format of the Java client."""

import errno
from pathlib import Path

import pytest
from tests.helpers import FaultyFiles

from firetrail.client.consumers.push.local_offsets import LocalOffsets
from firetrail.remoting.messages.bodies import MessageQueue

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
JAVAS = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:17
\t}
}"""
"""As the Java clients 4.9.7 and 5.3.3 write it."""


async def opened(folder: Path) -> LocalOffsets:
    offsets = LocalOffsets(folder, "10.0.0.1@DEFAULT", "G")
    await offsets.load()
    return offsets


async def test_saved_offsets_are_loaded(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    assert first.get(Q0) is None
    await first.save({Q0: 5})
    await first.save({Q1: 7})
    assert first.path == tmp_path / "10.0.0.1@DEFAULT" / "G" / "offsets.json"
    second = await opened(tmp_path)
    assert (second.get(Q0), second.get(Q1)) == (5, 7)


async def test_a_file_of_the_java_client_is_loaded(tmp_path: Path) -> None:
    offsets = await opened(tmp_path)
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_text(JAVAS)
    assert (await opened(tmp_path)).get(Q0) == 17


async def test_the_file_is_written_as_by_the_java_client(tmp_path: Path) -> None:
    offsets = await opened(tmp_path)
    await offsets.save({Q0: 17})
    assert offsets.path.read_text() == JAVAS


async def test_the_backup_is_loaded_if_the_file_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = await opened(tmp_path)
    await offsets.save({Q0: 5})
    await offsets.save({Q0: 6})
    offsets.path.write_text("{torn")
    assert (await opened(tmp_path)).get(Q0) == 5
    assert "offsets.json cannot be read and is ignored" in caplog.text


async def test_unchanged_offsets_are_not_written(tmp_path: Path) -> None:
    offsets = await opened(tmp_path)
    await offsets.save({Q0: 5})
    offsets.path.unlink()
    await offsets.save({Q0: 5})
    assert not offsets.path.exists()


@pytest.mark.parametrize("operation", ["open", "write", "sync", "sync_folder"])
@pytest.mark.parametrize("skip", [0, 1])
async def test_a_failed_save_leaves_a_file_that_can_be_read(
    tmp_path: Path, operation: str, skip: int
) -> None:
    """The file exists at every moment, so that no crash leaves only the backup."""
    await (await opened(tmp_path)).save({Q0: 5})
    files = FaultyFiles()
    offsets = LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "G", files)
    await offsets.load()
    files.fail(operation, errno.EIO, skip=skip, times=1)
    with pytest.raises(OSError, match=r"Input/output"):
        await offsets.save({Q0: 6})
    assert offsets.path.exists()
    assert (await opened(tmp_path)).get(Q0) in (5, 6)
