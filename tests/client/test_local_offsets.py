"""Offsets in a file, in the format of the Java client."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from tests.helpers import FaultyFiles

from firetrail.client.local_offsets import LocalOffsets
from firetrail.remoting.bodies import MessageQueue

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


def opened(folder: Path) -> LocalOffsets:
    offsets = LocalOffsets(folder, "10.0.0.1@DEFAULT", "G")
    asyncio.run(offsets.load())
    return offsets


def test_saved_offsets_are_loaded(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert first.get(Q0) is None
    asyncio.run(first.save({Q0: 5}))
    asyncio.run(first.save({Q1: 7}))
    assert first.path == tmp_path / "10.0.0.1@DEFAULT" / "G" / "offsets.json"
    second = opened(tmp_path)
    assert (second.get(Q0), second.get(Q1)) == (5, 7)


def test_a_file_of_the_java_client_is_loaded(tmp_path: Path) -> None:
    offsets = opened(tmp_path)
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_text(JAVAS)
    assert opened(tmp_path).get(Q0) == 17


def test_the_file_is_written_as_by_the_java_client(tmp_path: Path) -> None:
    offsets = opened(tmp_path)
    asyncio.run(offsets.save({Q0: 17}))
    assert offsets.path.read_text() == JAVAS


def test_the_backup_is_loaded_if_the_file_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = opened(tmp_path)
    asyncio.run(offsets.save({Q0: 5}))
    asyncio.run(offsets.save({Q0: 6}))
    offsets.path.write_text("{torn")
    assert opened(tmp_path).get(Q0) == 5
    assert "offsets.json cannot be read and is ignored" in caplog.text


def test_unchanged_offsets_are_not_written(tmp_path: Path) -> None:
    offsets = opened(tmp_path)
    asyncio.run(offsets.save({Q0: 5}))
    offsets.path.unlink()
    asyncio.run(offsets.save({Q0: 5}))
    assert not offsets.path.exists()


@pytest.mark.parametrize("operation", ["open", "write", "sync", "sync_folder"])
@pytest.mark.parametrize("skip", [0, 1])
def test_a_failed_save_leaves_a_file_that_can_be_read(
    tmp_path: Path, operation: str, skip: int
) -> None:
    """The file exists at every moment, so that no crash leaves only the backup."""
    asyncio.run(opened(tmp_path).save({Q0: 5}))
    files = FaultyFiles()
    offsets = LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "G", files)
    asyncio.run(offsets.load())
    files.fail(operation, errno.EIO, skip=skip, times=1)
    with pytest.raises(OSError, match=r"Input/output"):
        asyncio.run(offsets.save({Q0: 6}))
    assert offsets.path.exists()
    assert opened(tmp_path).get(Q0) in (5, 6)
