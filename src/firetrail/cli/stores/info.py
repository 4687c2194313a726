"""``firetrail info``: the contents of a store, without reading all of it."""

import argparse
import json
from contextlib import closing
from typing import Any

from firetrail.broker.timer.timer_inspection import timer_waiting
from firetrail.cli import common
from firetrail.cli.common import open_view
from firetrail.cli.output import colour, counted, human_size, human_time, shortened, table
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.names import INDEX
from firetrail.store.inspect.log_tail import read_tail
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.log_records import store_time_at
from firetrail.store.problems import WARNINGS

DESCRIPTION = """\
Show the contents of a store (files, topics, queues, offsets, sizes, times) and whether it is open,
closed or crashed.

Only file names, headers and the ends of files are read, so a store of 100 GiB takes no longer than
a small one; 'firetrail fsck' checks the messages. Exit code 0: no problems; 1: problems were found;
2: not a store, or unreadable."""
EXAMPLES = """\
  firetrail info data
  firetrail info data --json | jq '.topics[] | {topic, messages}'"""

Facts = dict[str, Any]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = common.add_parser(
        subparsers, "info", "show the contents of a store", DESCRIPTION, EXAMPLES
    )
    common.add_json(parser, "print a JSON object")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print the facts."""
    with open_view(args.store) as view:
        facts = collect(view)
    print(json.dumps(facts) if args.json else "\n".join(show(facts)))
    return ExitCode.PROBLEMS if facts["problems"] else ExitCode.OK


# -- facts ----------------------------------------------------------------------------------------


def collect(view: StoreView) -> Facts:
    """Collect everything that the command prints."""
    tail = read_tail(view)
    noted = [*view.log.misfits, *view.queue_faults.values(), *view.index_faults]
    problems = [problem for problem in noted if problem.kind not in WARNINGS]
    waiting = timer_waiting(view)
    return {
        "store": str(view.root),
        "state": view.state.value,
        "owner": view.owner,
        "tail": tail.kind.value,
        "log": _log(view),
        "topics": _topics(view),
        "index": [_index_file(view, number) for number in range(len(view.index.files))],
        "checkpoint": view.checkpoint._asdict(),
        "watermark": None if view.watermark is None else view.watermark._asdict(),
        "timer": None if waiting is None else waiting._asdict(),
        "foreign": view.foreign(),
        "problems": [problem._asdict() for problem in problems],
    }


def _log(view: StoreView) -> Facts:
    first_time = _time(view, view.log.min_offset)
    files = [
        {
            "file": view.relative(segment.path),
            "first_offset": segment.base,
            "size": segment.size,
            "written": segment.committed,
            "first_store_time": _time(view, segment.base),
        }
        for segment in view.log.segments
    ]
    return {
        "file_size": view.log.segment_size,
        "min_offset": view.log.min_offset,
        "max_offset": view.end,
        "bytes": sum(segment.committed for segment in view.log.segments),
        "first_store_time": first_time,
        "last_store_time": _time(view, view.last_record),
        "files": files,
    }


def _time(view: StoreView, offset: int) -> int | None:
    if offset < 0:
        return None
    return store_time_at(view.log, offset) if offset < view.end else None


def _topics(view: StoreView) -> list[Facts]:
    topics: dict[str, Facts] = {}
    for topic, queue_id in view.queues.pairs():
        facts = topics.setdefault(topic, {"topic": topic, "messages": 0, "queues": []})
        queue = _queue(view, topic, queue_id)
        facts["queues"].append(queue)
        facts["messages"] += queue["messages"]
    return list(topics.values())


def _queue(view: StoreView, topic: str, queue_id: int) -> Facts:
    if (topic, queue_id) in view.queue_faults:
        return {"queue_id": queue_id, "readable": False, "messages": 0}
    with closing(view.open_queue(topic, queue_id)) as queue:
        low, high = queue.min_offset(view.log.min_offset), queue.max_offset
        first, last = queue.unit(low), queue.last_unit
        return {
            "queue_id": queue_id,
            "readable": True,
            "messages": high - low,
            "min_offset": low,
            "max_offset": high,
            "bytes": high * UNIT_SIZE - queue.files.min_offset,
            "first_store_time": first and _time(view, first.physical_offset),
            "last_store_time": last and _time(view, last.physical_offset),
        }


def _index_file(view: StoreView, number: int) -> Facts:
    file = view.index.files[number]
    header = file.header
    return {
        "file": f"{INDEX}/{file.segment.path.name}",
        "size": file.segment.size,
        "slots": file.slots,
        "slots_used": header.slot_count,
        "entries": header.next_entry - 1,
        "entries_max": file.entries - 1,
        "begin_time": header.begin_timestamp,
        "end_time": header.end_timestamp,
        "begin_offset": header.begin_offset,
        "end_offset": header.end_offset,
    }


# -- for people -----------------------------------------------------------------------------------


def show(facts: Facts) -> list[str]:
    """Return the facts as lines."""
    return [
        *_show_summary(facts),
        *_section("Log files", _show_log(facts)),
        *_section("Queues", _show_queues(facts)),
        *_section("Index files", _show_index(facts)),
        *_section("Other files and folders", facts["foreign"]),
        *_section("Problems", [colour(_problem(fact), "red") for fact in facts["problems"]]),
    ]


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", colour(title, "bold"), *lines] if lines else []


def _show_summary(facts: Facts) -> list[str]:
    log = facts["log"]
    messages = sum(topic["messages"] for topic in facts["topics"])
    lines = [
        ("Store", facts["store"]),
        ("State", _state(facts)),
        (
            "Log",
            f"{human_size(log['bytes'])} in {counted(len(log['files']), 'file')} of "
            f"{human_size(log['file_size'])}, physical offsets {log['min_offset']} to "
            f"{log['max_offset']}",
        ),
        (
            "Stored",
            f"{human_time(log['first_store_time'])} to {human_time(log['last_store_time'])}",
        ),
        ("Messages", f"{messages} in the queues of {counted(len(facts['topics']), 'topic')}"),
        ("Checkpoint", _show_checkpoint(facts["checkpoint"])),
    ]
    if facts["timer"] is not None:
        lines.append(("Timer", _show_timer(facts["timer"])))
    watermark = facts["watermark"]
    if watermark is not None:
        text = f"on disk to {watermark['durable_offset']}, dispatched to "
        lines.append(("Watermark", text + str(watermark["dispatched_offset"])))
    return [f"{colour(name.ljust(10), 'bold')}  {value}" for name, value in lines]


def _show_timer(timer: Facts) -> str:
    waits = f"{counted(timer['messages'], 'message')} waiting"
    if timer["first_ms"] is None:
        return waits
    return f"{waits}, due {human_time(timer['first_ms'])} to {human_time(timer['last_ms'])}"


def _state(facts: Facts) -> str:
    if facts["state"] == StoreState.OPEN.value:
        return colour(f"open in process {facts['owner']}", "green")
    if facts["state"] == StoreState.CLOSED.value:
        return colour("closed", "green")
    return colour("crashed: it was not closed cleanly; the next open recovers it", "yellow")


def _show_checkpoint(checkpoint: Facts) -> str:
    return (
        f"log {human_time(checkpoint['physic_timestamp'])}, "
        f"queues {human_time(checkpoint['logics_timestamp'])}, "
        f"index {human_time(checkpoint['index_timestamp'])}"
    )


def _show_log(facts: Facts) -> list[str]:
    rows = [
        (
            file["file"],
            file["first_offset"],
            human_size(file["written"]),
            f"{file['written'] / file['size']:.0%}",
            human_time(file["first_store_time"]),
        )
        for file in facts["log"]["files"]
    ]
    return table(("FILE", "OFFSET>", "WRITTEN>", "FULL>", "FIRST STORED"), rows) if rows else []


def _show_queues(facts: Facts) -> list[str]:
    rows = [
        (
            shortened(topic["topic"]),
            queue["queue_id"],
            queue["messages"] if queue["readable"] else "damaged",
            queue.get("min_offset", "-"),
            queue.get("max_offset", "-"),
            human_time(queue.get("first_store_time")),
            human_time(queue.get("last_store_time")),
        )
        for topic in facts["topics"]
        for queue in topic["queues"]
    ]
    heads = ("TOPIC", "QUEUE>", "MESSAGES>", "MIN>", "MAX>", "FIRST STORED", "LAST STORED")
    return table(heads, rows) if rows else []


def _show_index(facts: Facts) -> list[str]:
    rows = [
        (
            file["file"],
            file["entries"],
            f"{file['entries'] / file['entries_max']:.0%}",
            f"{file['begin_offset']} to {file['end_offset']}",
            human_time(file["begin_time"]),
            human_time(file["end_time"]),
        )
        for file in facts["index"]
    ]
    heads = ("FILE", "ENTRIES>", "FULL>", "OFFSETS", "FIRST STORED", "LAST STORED")
    return table(heads, rows) if rows else []


def _problem(fact: Facts) -> str:
    return f"{fact['file']}: {fact['kind']}: {fact['detail']}"
