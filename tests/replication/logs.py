"""Logs in memory, and the content of real ones, for the tests of replication."""

from dataclasses import dataclass, field
from pathlib import Path

from firetrail import Message, Store, StoreConfig
from firetrail.format.layout import BLANK, MAGIC_BLANK
from firetrail.format.names import COMMIT_LOG

FILE_SIZE = 2048
SMALL = StoreConfig(
    commit_log_file_size=FILE_SIZE,
    max_message_size=1000,
    consume_queue_file_size=2000,
    index_slots=10,
)


@dataclass
class MemoryLog:
    """A log in memory, of a master or of a replica."""

    content: bytearray = field(default_factory=bytearray)
    min_offset: int = 0
    file_size: int = FILE_SIZE
    shown_offset: int = 0

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.content)

    @property
    def sendable_offset(self) -> int:
        return self.max_offset

    def note_unsealed(self) -> None:
        """All records are kept alike."""

    def append_copied(self, offset: int, records: memoryview, store_time: int) -> None:
        assert offset == self.max_offset
        self.content += records

    def fill_up_copied(self, offset: int) -> None:
        assert offset == self.max_offset
        left = self.file_size - offset % self.file_size
        self.content += BLANK.struct.pack(left, MAGIC_BLANK) + bytes(left - BLANK.size)


def written_log(folder: Path, files: float) -> bytes:
    """Write a store with this many log files; return the content of its log up to the end."""
    with Store.open(folder, SMALL) as store:
        number = 0
        while store.log_range[1] < files * FILE_SIZE:
            store.put(Message("T", b"%d" % number * (number * 7 % 50), keys=[str(number)]))
            number += 1
        end = store.log_range[1]
    return log_content(folder)[:end]


def log_content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / COMMIT_LOG).iterdir()))
