"""The files of Iceberg tables in local folders: their addresses, and durable writes.

Addresses are URLs of the scheme ``file``, as other engines write them. None of them decodes such a
URL, so the path is in it as it is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Transaction

from firetrail.errors import ConfigError
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.system import SYSTEM

_REFUSED = re.compile(r"[\x00-\x1f\x7f#?\ud800-\udfff]")
"""What PyIceberg, which takes paths for URLs, cuts off or cannot encode."""
_SCHEME = "file://"


def check_iceberg_opens(folder: LakeFolder) -> None:
    """Raise ConfigError if PyIceberg cannot open a table in a local folder."""
    found = _REFUSED.search(folder.place)
    if found is not None:
        raise ConfigError(
            "to", folder.place, f"Iceberg's library opens no path with {found[0]!r}; choose another"
        )


def address_of(folder: LakeFolder, name: str = "") -> str:
    """Return the address of a file in a local folder, or of the folder."""
    return _SCHEME + folder.path(name).rstrip("/")


def path_of(address: str) -> str:
    """Return the local path of an address, which older engines write as ``file:/path``."""
    scheme, colon, path = address.partition(":")
    return "/" + path.lstrip("/") if colon and scheme == "file" else address


def commit_files(
    transaction: Transaction,
    properties: dict[str, str],
    added: Iterable[DataFile],
    removed: Iterable[DataFile],
) -> None:
    """Add a snapshot with other files to a transaction.

    Args:
        transaction: The transaction, which the caller commits.
        properties: The properties of the snapshot.
        added: The files that the table gains.
        removed: The files that it loses.
    """
    removed = list(removed)
    update = transaction.update_snapshot(properties)
    with update.overwrite() if removed else update.merge_append() as snapshot:
        for file in removed:
            snapshot.delete_data_file(file)
        for file in added:
            snapshot.append_data_file(file)


class DurableFileIO(PyArrowFileIO):
    """PyIceberg's access to files, which syncs the local ones that it writes."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file that is synced when it is closed."""
        file = super().new_output(location)
        if not location.startswith(_SCHEME):
            return file
        return _DurableFile(file.location, file._path, file._filesystem)


FILE_ACCESS = {"py-io-impl": f"{DurableFileIO.__module__}.{DurableFileIO.__name__}"}
"""The property of a catalog with which its tables are written durably."""


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        return _DurableStream(super().create(overwrite), Path(self._path))


class _DurableStream(io.RawIOBase):
    """A stream whose file and folder are synced on close."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        return int(self._stream.write(content))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._stream.close()
        descriptor = SYSTEM.files.open(self._path, writable=False)
        try:
            SYSTEM.files.sync(descriptor)
        finally:
            SYSTEM.files.close(descriptor)
        SYSTEM.files.sync_folder(self._path.parent)
