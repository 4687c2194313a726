"""Log files that another program removed, and the consumer groups that skip their messages.

Retention deletes the oldest files of the log, but only while the store is open, and it records in
the inventory how far. Any other file that is missing at the beginning of the log was removed by
other means: by hand, by a script, or because a copy of the store is incomplete.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import StoreDamagedError
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.evidence.evidence import group_positions
from firetrail.store.evidence.inventory import Inventory
from firetrail.store.queues.queue_table import QueueKey
from firetrail.system import System
from firetrail.text import counted, some_of

MinOffset = Callable[[QueueKey, int], int | None]
"""Returns where a queue begins if the log begins at an offset; None without a readable queue."""


class Removal(NamedTuple):
    """The beginning of the log according to the inventory, and its beginning now."""

    known_begin: int
    begin: int
    clean: bool
    skipped: dict[str, int]
    """The number of messages that each consumer group skips."""

    def __str__(self) -> str:
        when = "when the store was last closed" if self.clean else "before the store was stopped"
        skipped = "no consumer group had messages left in them"
        if self.skipped:
            groups = [
                f"{group} skips {counted(number, 'message')}"
                for group, number in self.skipped.items()
            ]
            skipped = f"consumer groups skip messages: {some_of(groups)}"
        return (
            f"the log began at {self.known_begin} {when}, but now begins at {self.begin}: another "
            f"program removed its first files; {skipped}; stop the broker and put the files back "
            "if they still exist"
        )


def refuse_empty_folder(
    folders: Iterable[Path], log: SegmentQueue, known: Inventory, *, clean: bool
) -> None:
    """Raise StoreDamagedError if the first log files are missing, and so is all of one folder.

    Its disk is probably not mounted. ``known`` must be current.
    """
    if not log.segments or log.min_offset <= _known_begin(known, clean=clean):
        return
    used = {segment.path.parent for segment in log.segments}
    for folder in folders:
        if folder not in used:
            raise StoreDamagedError(
                str(folder),
                0,
                None,
                f"the first files of the log are missing, up to {log.min_offset}, and this folder "
                "of it is empty",
                "mount its volume; if the files were removed on purpose, remove the folder from "
                "storePathCommitLog and readOnlyCommitLogStorePaths",
            )


def _known_begin(known: Inventory, *, clean: bool) -> int:
    return known.log_begin if clean else max(known.log_begin, known.retained_from)


def find_removal(
    system: System, root: Path, known: Inventory, begin: int, min_offset: MinOffset, *, clean: bool
) -> Removal | None:
    """Return the part that is missing at the beginning of the log, which is not empty.

    ``known`` must be current.
    """
    known_begin = _known_begin(known, clean=clean)
    if begin <= known_begin:
        return None
    skipped: Counter[str] = Counter()
    for key, group, position in group_positions(system, root):
        had, has = min_offset(key, known_begin), min_offset(key, begin)
        if had is not None and has is not None:
            skipped[group] += max(has - max(position, had), 0)
    return Removal(known_begin, begin, clean, dict(sorted((+skipped).items())))
