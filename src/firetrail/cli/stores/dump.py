"""``firetrail dump``: the messages of a store, in the order of the log."""

import argparse
import heapq
import sys
from collections.abc import Generator, Iterator
from itertools import islice

from firetrail.cli import common
from firetrail.cli.common import not_negative, open_view, queues_of
from firetrail.cli.output import colour, say
from firetrail.cli.record_output import HEADING, RecordFormatter, Row, row_of, rows_of
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import FiretrailError
from firetrail.format import columns as col
from firetrail.format.columns import Check, Columns
from firetrail.format.files.unit import PRE_BLANK, ConsumeQueueUnit
from firetrail.format.light import is_light, numbered_queues
from firetrail.format.values.javahash import java_text
from firetrail.store.evidence.dropped_records import is_copy_of_dropped
from firetrail.store.inspect.log_tail import TailKind, read_tail
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.inspect.zeroed_pages import queue_gaps
from firetrail.store.log.log_records import record_at
from firetrail.store.log.walk import Damage, RecordBatch
from firetrail.store.problems import ProblemKind
from firetrail.store.queues.consume_queue import ConsumeQueue

DESCRIPTION = """\
Print the messages of a store in the order of the log, one per line.

Without --topic it reads the log and prints every message, even those that no consumer sees
(prepared and rolled back transactions). With --topic it follows the consume queues.

STORE may also be a folder dropped-<time> in a store: it has records that were removed from the
store, by recovery after an unclean stop or by 'firetrail replica rewind'.

It continues after damage: each damaged place, and the offset where it continues, is reported on
standard error. Exit code 0: success; 1: the store is damaged; 2: not a store, or unreadable."""
EXAMPLES = """\
  firetrail dump data
  firetrail dump data --topic orders --queue 2 --from 1000 --limit 10
  firetrail dump data --json | jq -r '.properties.KEYS'
  firetrail dump data --json --from 1073741824     # from a physical offset on"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = common.add_parser(subparsers, "dump", "print messages", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--topic", metavar="TOPIC", help="only this topic, through its consume queues"
    )
    parser.add_argument(
        "--queue", metavar="N", type=not_negative, help="only this queue of the topic"
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="OFFSET",
        type=not_negative,
        help="start at this physical offset; with --topic, at this queue offset of each queue",
    )
    parser.add_argument("--limit", metavar="N", type=not_negative, help="print at most N messages")
    common.add_json(parser, "print one JSON object per line: all fields, the body in base64")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print the messages."""
    if args.queue is not None and args.topic is None:
        raise FiretrailError("--queue needs --topic")
    formatter = RecordFormatter()
    show = formatter.json if args.json else formatter.line
    if args.topic is not None and is_copy_of_dropped(args.store):
        raise FiretrailError(
            f"{args.store} has the records that were removed from a store, but no consume queues; "
            "leave out --topic"
        )
    with open_view(args.store) as view:
        dump = Dump(view)
        if args.topic is None:
            rows = dump.log(args.start)
        else:
            ids = queues_of(view, args.topic, args.queue)
            rows = dump.topic(args.topic, ids, args.start)
        if not args.json:
            print(colour(HEADING, "bold"))
        write = sys.stdout.write
        for row in islice(rows, args.limit):
            write(show(row) + "\n")
        rows.close()
    return ExitCode.PROBLEMS if dump.problems else ExitCode.OK


class Dump:
    """Reads the messages of a store and counts the problems that it meets."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._is_copy = is_copy_of_dropped(view.root)
        self.problems = 0

    # -- along the log ------------------------------------------------------------------------

    def log(self, start: int | None) -> Generator[Row]:
        """Yield all messages, starting with the first one at or after a physical offset."""
        view = self._view
        for part in view.walk(self._first_record(start)):
            if isinstance(part, Damage):
                if not self._is_expected(part):
                    self._report(part)
                continue
            if part.failed is not None:
                self._report(part.failed)
            yield from rows_of(
                part.segment.view,
                part.segment.base,
                part.columns,
                part.rows,
                last_ok=part.failed is None,
            )
        self._report_tail()

    def _is_expected(self, damage: Damage) -> bool:
        """Whether the damage is the hole at the beginning of a copy of dropped records."""
        is_first = damage.physical_offset == self._view.log.min_offset
        is_hole = damage.kind is ProblemKind.LOG_HOLE
        return self._is_copy and is_first and is_hole and damage.resume is not None

    def _first_record(self, start: int | None) -> int | None:
        """Return the physical offset of the first record at or after ``start``."""
        log = self._view.log
        segment = log.find(start) if start is not None else None
        if start is None or segment is None or record_at(log, start) is not None:
            return start
        for part in self._view.walk(segment.base, Check.NONE):
            if isinstance(part, RecordBatch):
                offsets = part.columns.column(col.PHYSICAL_OFFSET)[: part.rows]
                if offsets[-1] >= start:
                    return next(offset for offset in offsets if offset >= start)
        return start

    def _report_tail(self) -> None:
        tail = read_tail(self._view)
        if tail.kind is TailKind.DAMAGED:
            assert tail.found is not None
            self._report(tail.found)
        elif tail.kind is TailKind.TORN:
            say(
                f"the store was not closed cleanly; the unfinished record at {self._view.end}, "
                "after the last good one, is left out"
            )

    def _report(self, damage: Damage) -> None:
        self.problems += 1
        onward = "stopped there" if damage.resume is None else f"continued at {damage.resume}"
        say(
            f"{self._view.relative(damage.path)} at {damage.position} (physical offset "
            f"{damage.physical_offset}): {damage.kind}: {damage.detail}; {onward}"
        )

    # -- along consume queues -----------------------------------------------------------------

    def topic(self, topic: str, queue_ids: list[int], start: int | None) -> Generator[Row]:
        """Yield the messages of some queues of a topic, merged in the order of the log."""
        columns = Columns(1)
        queues = [self._units(self._view.queues.open(topic, number), start) for number in queue_ids]
        for gap in queue_gaps(self._view, topic, queue_ids):
            self.problems += 1
            say(f"{gap.file} at {gap.offset}: {gap.detail}; check the store: firetrail fsck")
        for unit, offset, queue_id in heapq.merge(*queues):
            record = record_at(self._view.log, unit.physical_offset)
            row = row_of(record, unit.physical_offset, columns) if record is not None else None
            if row is None or row.size != unit.size or not _is_in(row, topic, queue_id, offset):
                self._report_unit(topic, queue_id, offset, unit)
                continue
            if not row.crc_ok:
                self.problems += 1
            yield row

    def _units(
        self, queue: ConsumeQueue, start: int | None
    ) -> Iterator[tuple[ConsumeQueueUnit, int, int]]:
        first = queue.min_offset(self._view.log.min_offset)
        for offset in range(max(first, start or 0), queue.max_offset):
            unit = queue.unit(offset)
            if unit is not None and unit.size != PRE_BLANK.size:
                yield unit, offset, queue.queue_id

    def _report_unit(self, topic: str, queue_id: int, offset: int, unit: ConsumeQueueUnit) -> None:
        view = self._view
        if view.state is StoreState.OPEN and (
            unit.end_offset > view.end or view.log.is_gone(unit.physical_offset)
        ):
            return  # it was appended, or it expired, after the view was opened
        self.problems += 1
        say(
            f"queue {topic}/{queue_id}: message {offset} is missing at physical offset "
            f"{unit.physical_offset} ({unit.size} bytes), where its unit points; check the store: "
            "firetrail fsck"
        )


def _is_in(row: Row, topic: str, queue_id: int, offset: int) -> bool:
    """Return whether a record belongs at this offset of a queue.

    A light queue has messages of other topics, whose properties name it. The queue offsets in these
    properties may differ from the positions of the units: Java counts messages that did not get
    into the queue.
    """
    if is_light(topic):
        return topic in dict(numbered_queues(row.properties))
    return (java_text(row.topic), row.queue_id, row.queue_offset) == (topic, queue_id, offset)
