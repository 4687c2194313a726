"""The files of Iceberg tables in local folders, and their durable writes."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from firetrail.system import SYSTEM

_SCHEME = "file://"


class DurableFileIO(PyArrowFileIO):
    """PyIceberg's access to files, which syncs the local ones that it writes."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file that is synced when it is closed."""
        file = super().new_output(location)
        if not location.startswith(_SCHEME):
            return file
        return _DurableFile(file.location, file._path, file._filesystem)


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        return _DurableStream(super().create(overwrite), Path(self._path))


class _DurableStream:
    """A stream whose file and folder are synced on close."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def write(self, content: bytes) -> int:
        return int(self._stream.write(content))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.close()
        descriptor = SYSTEM.files.open(self._path, writable=False)
        try:
            SYSTEM.files.sync(descriptor)
        finally:
            SYSTEM.files.close(descriptor)
        SYSTEM.files.sync_folder(self._path.parent)

    def __enter__(self) -> _DurableStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
