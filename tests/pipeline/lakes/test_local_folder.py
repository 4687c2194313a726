"""Data files in a local folder: they get their names when a job publishes them."""

from pathlib import Path

import pytest

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.local_folder import LocalFolder


def write(folder: LocalFolder, name: str) -> None:
    file = folder.create(name)
    file.write(b"x")
    file.close()


def test_files_that_were_written_get_their_names_once(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    names = [folder.new_name("data", "1", "token", ".parquet") for _ in range(2)]
    for name in names:
        write(folder, name)
    folder.reveal(names[:1])
    folder.reveal(names)
    assert [(tmp_path / name).read_bytes() for name in names] == [b"x", b"x"]


def test_a_file_that_is_missing_is_not_published(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    write(folder, "data/a.parquet")
    with pytest.raises(LakeError, match=r"/data/b\.parquet: this data file was written, and is mi"):
        folder.reveal(["data/a.parquet", "data/b.parquet"])
