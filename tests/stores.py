"""Stores for the tests of readers and checks: golden stores, and copies with damage."""

import json
import shutil
from pathlib import Path

from firetrail.format.columns import Columns
from firetrail.format.kernels.scan import scan
from firetrail.format.names import COMMIT_LOG
from firetrail.format.record import Blank, Record, decode_record

GOLDEN = Path(__file__).parent / "golden"
LIGHT = "v5-light-crashed"
"""Separate from the others, whose messages are alike."""
NAMES = sorted(
    path.parent.name for path in GOLDEN.glob(f"*/{COMMIT_LOG}") if LIGHT not in path.parts
)
CLEAN = [name for name in NAMES if "crashed" not in name]
CRASHED = [name for name in NAMES if "crashed" in name]


def copy_of(name: str, target: Path) -> Path:
    shutil.copytree(GOLDEN / name, target / name)
    return target / name


def list_topics(
    root: Path,
    *names: str,
    changed_ms: int = 4_000_000_000_000,
    attributes: dict[str, dict[str, str]] | None = None,
) -> None:
    """Write a broker's list of topics, changed after all messages by default."""
    table = {
        name: {"topicName": name, "attributes": (attributes or {}).get(name, {})} for name in names
    }
    content = {"topicConfigTable": table, "dataVersion": {"counter": 1, "timestamp": changed_ms}}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(json.dumps(content))


def records(root: Path) -> list[Record]:
    """Return every message of a store's log, decoded one by one."""
    found = []
    for path in sorted((root / COMMIT_LOG).iterdir()):
        content = path.read_bytes()
        at = 0
        while len(content) - at >= 8 and any(content[at : at + 8]):
            record = decode_record(content, at, check_crc=False)
            if isinstance(record, Blank):
                break
            found.append(record)
            at += record.size
    return found


def flip(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def overwrite(path: Path, offset: int, content: bytes) -> None:
    old = path.read_bytes()
    path.write_bytes(old[:offset] + content + old[offset + len(content) :])


def truncate(path: Path, size: int) -> None:
    """Cut a file short."""
    path.write_bytes(path.read_bytes()[:size])


def state(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything about the files below a folder that reading must not change."""
    found = {}
    for path in sorted([root, *root.rglob("*")]):
        stat = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (stat.st_mtime_ns, stat.st_size, content)
    return found


def log_file(root: Path, physical_offset: int) -> tuple[Path, int]:
    """Return the log file that contains an offset, and the position in it."""
    base, path = max(
        (int(path.name), path)
        for path in (root / COMMIT_LOG).iterdir()
        if path.name.isdigit() and int(path.name) <= physical_offset
    )
    return path, physical_offset - base


def field_position(content: bytes, base: int, at: int, field: str) -> int:
    """Return the position of a column of a scan (``topic``, ``body``, ``tags``, …) in a record."""
    columns = Columns(1)
    assert scan(memoryview(content), at, len(content), base, columns.table, 0)[0] == 1
    return columns.row(0)[f"{field}_at"]


def derived(root: Path) -> tuple[dict[str, bytes], list[bytes]]:
    """Return the files derived from a store's log: queue files by name, index files in order.

    Files that were only created ahead are left out. Index files come without their names, because
    these are times.
    """
    queues = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted((root / "consumequeue").rglob("*"))
        if path.is_file() and any(path.read_bytes())
    }
    return queues, [path.read_bytes() for path in sorted((root / "index").glob("*"))]
