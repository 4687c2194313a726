"""What can be wrong with a store's files: the kinds of problem, and where one was found."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from firetrail.format.columns import Stop
from firetrail.format.names import COMMIT_LOG, CONFIG

_FILES_NAMED = 3
"""So many files are named in an advice; the others are counted."""

LOG_REMEDY = (
    "put the file back from a copy, or make a new store of every good message with 'firetrail "
    "salvage STORE --into DIR', or end the log before the damage with 'firetrail fsck STORE "
    "--repair truncate-log'"
)
DERIVED_REMEDY = (
    "put the file back from a copy, or make queues and index from the log with 'firetrail fsck "
    "STORE --repair rebuild-derived'"
)
CHECK_REMEDY = (
    "the log or the queue is damaged: 'firetrail fsck STORE' says which, and names the repair"
)
"""What errors advise; tests do it."""


class ProblemKind(StrEnum):
    """The kinds of problem that ``firetrail fsck`` reports; scripts rely on the names."""

    # -- any file -----------------------------------------------------------------------------
    FILE_SIZE = "file-size"
    FILE_MISSING = "file-missing"
    FILE_OVERLAP = "file-overlap"
    FILE_UNREADABLE = "file-unreadable"
    # -- the log ------------------------------------------------------------------------------
    RECORD_MAGIC = "record-magic"
    RECORD_SIZE = "record-size"
    RECORD_CUT = "record-cut"
    RECORD_OFFSET = "record-offset"
    RECORD_BODY_LENGTH = "record-body-length"
    RECORD_TOPIC_LENGTH = "record-topic-length"
    RECORD_PROPERTIES_LENGTH = "record-properties-length"
    RECORD_QUEUE = "record-queue"
    BODY_CRC = "body-crc"
    PROPERTY_CRC = "property-crc"
    QUEUE_OFFSET = "queue-offset"
    LOG_HOLE = "log-hole"
    LOG_END = "log-end"
    FILE_END = "file-end"
    # -- the consume queues -------------------------------------------------------------------
    UNIT_WRONG = "unit-wrong"
    UNIT_MISSING = "unit-missing"
    UNIT_STRAY = "unit-stray"
    # -- the index ----------------------------------------------------------------------------
    INDEX_FILE = "index-file"
    INDEX_HEADER = "index-header"
    INDEX_SLOT = "index-slot"
    INDEX_CHAIN = "index-chain"
    INDEX_ENTRY = "index-entry"
    INDEX_MISSING = "index-missing"
    INDEX_STRAY = "index-stray"
    # -- checkpoint and watermark -------------------------------------------------------------
    CHECKPOINT_UNREADABLE = "checkpoint-unreadable"
    CHECKPOINT_AHEAD = "checkpoint-ahead"
    CHECKPOINT_BEHIND = "checkpoint-behind"
    WATERMARK_TORN = "watermark-torn"
    # -- worth a warning, but nothing is wrong with the messages ------------------------------
    STORE_TIME = "store-time"
    BLANK_SIZE = "blank-size"
    STALE_TAIL = "stale-tail"
    RECORDS_DROPPED = "records-dropped"
    EMPTY_FILE = "empty-file"
    QUEUE_RESTART = "queue-restart"
    TOPIC_DELETED = "topic-deleted"
    BATCH_QUEUES = "batch-queues"
    NO_INDEX = "no-index"
    INDEX_REPEATED = "index-repeated"
    CHECKPOINT_MISSING = "checkpoint-missing"


WARNINGS = frozenset(
    {
        ProblemKind.STORE_TIME,
        ProblemKind.BLANK_SIZE,
        ProblemKind.STALE_TAIL,
        ProblemKind.RECORDS_DROPPED,
        ProblemKind.EMPTY_FILE,
        ProblemKind.QUEUE_RESTART,
        ProblemKind.TOPIC_DELETED,
        ProblemKind.BATCH_QUEUES,
        ProblemKind.NO_INDEX,
        ProblemKind.INDEX_REPEATED,
        ProblemKind.CHECKPOINT_MISSING,
    }
)
"""Kinds that make no store a bad one."""


class Problem(NamedTuple):
    """One thing that is wrong, and where.

    ``file`` is relative to the store, ``offset`` a position in it; ``physical_offset`` is that of
    the record concerned, None where there is none.
    """

    file: str
    offset: int
    physical_offset: int | None
    kind: ProblemKind
    detail: str


CUT_IT = "cut it: truncate -s"
MOVE_IT = "move it out of the store"
"""What helps against log files that are too long, or begin inside of another one."""


def advice(problems: Iterable[Problem], store: str) -> str | None:
    """How a store with these problems is repaired; None if there are none."""
    found = list(problems)
    by_hand = list(dict.fromkeys(problem.file for problem in found if _is_for_hands(problem)))
    if by_hand:  # others may follow from these
        shown = ", ".join(by_hand[:_FILES_NAMED])
        more = f" and {len(by_hand) - _FILES_NAMED} more" if len(by_hand) > _FILES_NAMED else ""
        return f"put right by hand, or put back from a copy, and check again: {shown}{more}"
    if any(_is_in(COMMIT_LOG, problem) for problem in found):
        return (
            f"'firetrail salvage {store} --into DIR' makes a new store of every good message; "
            f"'firetrail fsck {store} --repair truncate-log' gives up all from the first damage on"
        )
    if any(not _is_in(CONFIG, problem) for problem in found):
        return f"'firetrail fsck {store} --repair rebuild-derived' makes queues and index again"
    if found:
        return "put the files of the broker back from a copy"
    return None


def _is_in(folder: str, problem: Problem) -> bool:
    return problem.file.startswith(f"{folder}/")


def _is_for_hands(problem: Problem) -> bool:
    """Whether no command repairs it: what is in the file is good, or cannot be known."""
    if problem.kind is ProblemKind.FILE_UNREADABLE:
        return True
    remedies = (CUT_IT, MOVE_IT)
    return _is_in(COMMIT_LOG, problem) and any(remedy in problem.detail for remedy in remedies)


KIND_OF_STOP = {
    Stop.EMPTY: ProblemKind.LOG_HOLE,
    Stop.MAGIC: ProblemKind.RECORD_MAGIC,
    Stop.SIZE: ProblemKind.RECORD_SIZE,
    Stop.CUT: ProblemKind.RECORD_CUT,
    Stop.PHYSICAL_OFFSET: ProblemKind.RECORD_OFFSET,
    Stop.BODY_LENGTH: ProblemKind.RECORD_BODY_LENGTH,
    Stop.TOPIC_LENGTH: ProblemKind.RECORD_TOPIC_LENGTH,
    Stop.PROPERTIES_LENGTH: ProblemKind.RECORD_PROPERTIES_LENGTH,
    Stop.BODY_CRC: ProblemKind.BODY_CRC,
    Stop.PROPERTY_CRC: ProblemKind.PROPERTY_CRC,
}
"""What a scan that stopped at bytes which are not a good record has found."""
