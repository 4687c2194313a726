"""Errors that name a worker, and checks of folders that workers share with the driver."""

import os
import socket
from pathlib import Path

import pytest

from firetrail.errors import NotSharedError
from firetrail.pipeline.workers import (
    ancestors,
    check_arrived,
    check_shared,
    make_shared,
    worker_name,
)

REMEDY = "the driver and all workers must have the same folder at this path"


def test_a_process_without_an_executor_is_named_by_its_host() -> None:
    assert worker_name() == socket.gethostname()
    assert next(ancestors()) == os.getppid()


def test_a_folder_that_the_worker_lacks_is_an_error(tmp_path: Path) -> None:
    folder = make_shared(tmp_path, "pieces")
    check_shared(folder)
    folder.rmdir()
    with pytest.raises(NotSharedError, match=f"^{folder}: the driver created .*{REMEDY}"):
        check_shared(folder)


def test_a_file_that_the_driver_lacks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    check_arrived(path, 3, "w")
    with pytest.raises(NotSharedError, match=r"worker w wrote 4 bytes, .* sees 3 bytes, so"):
        check_arrived(path, 4, "w")
    path.unlink()
    with pytest.raises(NotSharedError, match=f"the driver sees no such file.*{REMEDY}"):
        check_arrived(path, 3, "w")
