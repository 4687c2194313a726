"""The stores that Java wrote, for tests: their files, read as plainly as possible."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import scan

FOLDER = Path(__file__).parents[2] / "golden"
LIGHT = "v5-light-crashed"
"""Its light queues are not a kernel's work."""
STORES = sorted({path.parent.name for path in FOLDER.glob("*/commitlog")} - {LIGHT})


class Piece(NamedTuple):
    """A file of the log and the scan of it, or of as much of it as there were rows for."""

    base: int
    data: bytes
    begin: int
    end: int
    columns: Columns
    rows: int
    stop: Stop


def scan_log(store: str, check: Check = Check.RECORD, rows_max: int = 100) -> Iterator[Piece]:
    """Yield the log in order, one piece per file and per ``rows_max`` records."""
    for path in sorted((FOLDER / store / "commitlog").iterdir()):
        data = path.read_bytes()
        at = 0
        stop = Stop.FULL
        while stop == Stop.FULL:
            columns = Columns(rows_max)
            rows, end, code = scan(data, at, len(data), int(path.name), columns.table, check)
            stop = Stop(code)
            yield Piece(int(path.name), data, at, end, columns, rows, stop)
            at = end


def queue_files(store: str) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """(first byte, content) of the files of each queue."""
    return {
        (queue.parent.name, int(queue.name)): [
            (int(path.name), path.read_bytes()) for path in sorted(queue.iterdir())
        ]
        for queue in (FOLDER / store / "consumequeue").glob("*/*")
    }


def index_files(store: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((FOLDER / store / "index").iterdir())]
