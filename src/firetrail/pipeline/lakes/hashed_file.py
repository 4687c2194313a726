"""A file that is written sequentially, and whose length and SHA-256 are known at the end."""

import hashlib
from pathlib import Path
from typing import Any

from firetrail.pipeline.workers import naming_file
from firetrail.system import SYSTEM

REMEDY = "free some space, and run the job again: the lake is unchanged"


class HashedFile:
    """A new file, with the methods that a writer of Parquet needs.

    Args:
        stream: The open file of Arrow.
        shown: Its name for messages.
        local_path: Its path if it must be synced; None, the default, for remote files.
    """

    def __init__(self, stream: Any, shown: str, local_path: str | None = None) -> None:
        self._stream = stream
        self._shown = shown
        self._local_path = local_path
        self._abandoned = False
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        """Append bytes and return their number."""
        view = memoryview(data)
        if not self._abandoned:
            self._hash.update(view)
            with naming_file(self._shown, REMEDY):
                self._stream.write(data)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return the position, which Parquet's footer contains."""
        return self.size

    def flush(self) -> None:
        """Do nothing: only the closed file must be durable."""

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return bool(self._stream.closed)

    def close(self) -> None:
        """Close the file and make it durable."""
        if self.closed:
            return
        with naming_file(self._shown, REMEDY):
            self._stream.close()
            if self._local_path is not None and not self._abandoned:
                descriptor = SYSTEM.files.open(Path(self._local_path), writable=False)
                try:
                    SYSTEM.files.sync(descriptor)
                finally:
                    SYSTEM.files.close(descriptor)

    def abandon(self) -> None:
        """Remove the file of a failed task; what is written to it afterwards is dropped."""
        self._abandoned = True
        if self._local_path is not None:
            SYSTEM.files.discard(Path(self._local_path))

    @property
    def sha256(self) -> str:
        """SHA-256 of everything that was written, in hexadecimal."""
        return self._hash.hexdigest()
