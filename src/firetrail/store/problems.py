"""The kinds of problem that a store's files can have, and where a problem was found."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import PurePath
from typing import NamedTuple

from firetrail.format.columns import Stop
from firetrail.format.names import COMMIT_LOG, CONFIG, CONSUME_QUEUE, parse_segment_name
from firetrail.text import some_of

LOG_REMEDY = (
    "restore the file from a copy, or copy every good message to a new store with 'firetrail "
    "salvage STORE --into DIR', or end the log before the damage with 'firetrail fsck STORE "
    "--repair truncate-log'"
)
PUT_LOG_BACK = (
    "put the files of the log back (is the volume of the folder commitlog mounted?), or restore "
    "them from a copy"
)
DERIVED_REMEDY = (
    "restore the file from a copy, or rebuild queues and index from the log with 'firetrail fsck "
    "STORE --repair rebuild-derived'"
)
CHECK_REMEDY = (
    "the log or the queue is damaged: 'firetrail fsck STORE' says which, and names the repair"
)
"""The advice of errors; tests follow it."""


class ProblemKind(StrEnum):
    """The kinds of problem that ``firetrail fsck`` reports; scripts rely on these names."""

    # -- any file -----------------------------------------------------------------------------
    FILE_SIZE = "file-size"
    FILE_MISSING = "file-missing"
    FILE_OVERLAP = "file-overlap"
    FILE_UNREADABLE = "file-unreadable"
    CONFIG_UNREADABLE = "config-unreadable"
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
    # -- the timer ----------------------------------------------------------------------------
    TIMER_FILE = "timer-file"
    TIMER_SLOT = "timer-slot"
    TIMER_UNIT = "timer-unit"
    # -- warnings: the messages are not affected ----------------------------------------------
    LOG_BEGIN = "log-begin"
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
    CONFIRMED_TORN = "confirmed-torn"
    CONFIRMED_AHEAD = "confirmed-ahead"


WARNINGS = frozenset(
    {
        ProblemKind.LOG_BEGIN,
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
        ProblemKind.CONFIRMED_TORN,
        ProblemKind.CONFIRMED_AHEAD,
    }
)
"""Kinds of problem that do not make a store a damaged one."""


TIMER_KINDS = frozenset({ProblemKind.TIMER_FILE, ProblemKind.TIMER_SLOT, ProblemKind.TIMER_UNIT})
"""Kinds of problem that a broker repairs when it starts."""


class Problem(NamedTuple):
    """A problem and its location.

    ``file`` is relative to the store, and ``offset`` is a position in it. ``physical_offset`` is
    that of the record concerned, or None.
    """

    file: str
    offset: int
    physical_offset: int | None
    kind: ProblemKind
    detail: str


CUT_IT = "cut it: truncate -s"
MOVE_IT = "move it out of the store"
"""The remedy for log files that are too long, or begin inside another one."""


def advice(problems: Iterable[Problem], store: str) -> str | None:
    """Return the remedy for a store with these problems; None if there are none."""
    everything = list(problems)
    found = [problem for problem in everything if problem.kind not in TIMER_KINDS]
    if everything and not found:
        return "start a Firetrail broker: it rebuilds the files of the timer from their topic"
    if any(problem.file == COMMIT_LOG for problem in found):
        return f"{PUT_LOG_BACK}, and check again"
    manual = filter(_needs_manual_repair, found)
    by_hand = list(dict.fromkeys(problem.file for problem in manual))
    if by_hand:  # other problems may result from these
        return f"correct by hand, or restore from a copy, and check again: {some_of(by_hand)}"
    if any(map(_is_in_log, found)):
        return (
            f"{_put_back_first(found)}'firetrail salvage {store} --into DIR' copies every good "
            f"message to a new store; 'firetrail fsck {store} --repair truncate-log' removes the "
            "first damaged message and everything after it"
        )
    if any(not _is_in(CONFIG, problem) for problem in found):
        return f"'firetrail fsck {store} --repair rebuild-derived' rebuilds queues and index"
    if found:
        return "restore the files of the broker from a copy"
    return None


def _put_back_first(problems: list[Problem]) -> str:
    """Return the beginning of the advice for a log that lacks files."""
    absent = (ProblemKind.LOG_END, ProblemKind.FILE_MISSING)
    if any(_is_in_log(each) and each.kind in absent for each in problems):
        return "if log files were moved away, put them back and check again; otherwise "
    return ""


def _is_in(folder: str, problem: Problem) -> bool:
    return problem.file.startswith(f"{folder}/")


def _is_in_log(problem: Problem) -> bool:
    """Return whether a problem is one of the log, whose files may be in other folders."""
    is_segment = parse_segment_name(PurePath(problem.file).name) is not None
    return _is_in(COMMIT_LOG, problem) or (is_segment and not _is_in(CONSUME_QUEUE, problem))


def _needs_manual_repair(problem: Problem) -> bool:
    """Return whether no command repairs it: the file's content is good, or unknown."""
    if problem.kind is ProblemKind.FILE_UNREADABLE:
        return True
    remedies = (CUT_IT, MOVE_IT)
    return _is_in_log(problem) and any(remedy in problem.detail for remedy in remedies)


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
"""The kind of problem for each reason why a scan stops at bytes that are not a good record."""
