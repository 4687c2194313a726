"""Helpers for the tests of recovery."""

from pathlib import Path

from tests.helpers import START_MS, bodies

from firetrail import Store
from firetrail.format.files.checkpoint import Checkpoint, encode_checkpoint
from firetrail.format.names import segment_name

LOG = Path("commitlog", segment_name(0))
QUEUE = Path("consumequeue", "T", "0", segment_name(0))
ABORT = "abort"
JAVA = b""  # the content of RocketMQ 4.9's abort file
OURS = b"firetrail 1"


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + count)]


def patch(path: Path, offset: int, content: bytes | bytearray) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip(path: Path, offset: int) -> None:
    patch(path, offset, bytes([path.read_bytes()[offset] ^ 0x40]))


def java_wrote(root: Path, **times: int) -> None:
    """Change the checkpoint as another store would, so that the watermark no longer counts."""
    values = {"physic_timestamp": START_MS, "logics_timestamp": START_MS} | times
    (root / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(**values)))


def check_whole(store: Store, expected: list[bytes]) -> None:
    """Queue, log and index agree on these messages."""
    assert bodies(store) == expected
    records = list(store.read("T"))
    assert [record.queue_offset for record in records] == list(range(len(expected)))
    assert all(store.at(record.physical_offset) == record for record in records)
    found = store.query("T", "k", max_count=64)
    assert [m.queue_offset for m in found] == list(range(len(expected)))[::-1][:64]
    assert store.dispatch_behind == 0
