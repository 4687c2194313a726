"""Stores with one bit flipped, in every field of every file, and how each side handles them.

A store has 30 messages in one queue, each with a key and a tag; the flipped bit is one that the
tenth message depends on. The messages that a side serves are compared with those that it served
before the flip: one by one, by key and by tag.
"""

from __future__ import annotations

import base64
import json
import shutil
import struct
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from interop.peer import Java, Json, Sizes

from firetrail import FiretrailError, FlushMode, Message
from firetrail.format.files.checkpoint import CHECKPOINT
from firetrail.format.layout import (
    BLANK,
    INDEX_ENTRY,
    INDEX_HEADER,
    RECORD_HEAD,
    RECORD_MIDDLE,
    UNIT,
    Layout,
)
from firetrail.format.record import decode_message
from firetrail.format.values.javahash import index_key_hash
from firetrail.store.broker_store import BrokerStore
from firetrail.system import SYSTEM

COUNT, VICTIM = 30, 9
TOPIC, TAG = "T", "TagA"
BODIES = [b"message %d " % number + b"." * 100 for number in range(COUNT)]
KEYS = [f"k{number}" for number in range(COUNT)]
SLOTS = 50
ONE_FILE = Sizes(log=16_384, queue=1000, slots=SLOTS, entries=300)
"""Everything is in the last file of the log, which every start looks at."""
MANY_FILES = Sizes(log=1_500, queue=1000, slots=SLOTS, entries=300)
"""The damage is in a file that a clean start does not look at."""
HOST_SIZE, TIME_SIZE = 8, 8
UNHARMED = "no effect"
COLUMNS = 100
"""The width of a page of the docs."""


class Flip(NamedTuple):
    """One bit."""

    path: str
    at: int
    mask: int


def _ends(path: str, at: int, size: int) -> list[Flip]:
    """Return the last and the first bit of a field."""
    return [Flip(path, at + size - 1, 1), Flip(path, at, 0x80)]


def _fields(path: str, at: int, layout: Layout) -> Iterator[tuple[str, list[Flip]]]:
    names = list(layout.offsets)
    edges = [*layout.offsets.values(), layout.size]
    for number, name in enumerate(names):
        size = edges[number + 1] - edges[number]
        yield name.replace("_", " "), _ends(path, at + edges[number], size)


def flips_of(root: Path, sizes: Sizes, place: int) -> dict[str, list[Flip]]:
    """Return the bits to flip by file and field; ``place`` is the tenth's physical offset."""
    found: dict[str, list[Flip]] = {}
    log = f"commitlog/{place // sizes.log * sizes.log:020}"
    for name, flips in _record(root, log, place % sizes.log):
        found[f"record: {name}"] = flips
    blank = _blank(root / log)
    if blank is not None:
        for name, flips in _fields(log, blank, BLANK):
            found[f"end of a file: {name}"] = flips
    queue = f"consumequeue/{TOPIC}/0/{0:020}"
    for name, flips in _fields(queue, VICTIM * UNIT.size, UNIT):
        if name == "size":  # a little more, and a little less
            flips = [Flip(queue, flips[0].at, 1 << bit) for bit in range(3)] + flips[1:]
        found[f"unit: {name}"] = flips
    index = next((root / "index").iterdir()).relative_to(root).as_posix()
    for name, flips in _index(root, index, place):
        found[f"index: {name}"] = flips
    for name, flips in _fields("checkpoint", 0, CHECKPOINT):
        found[f"checkpoint: {name}"] = flips
    return found


def _record(root: Path, path: str, at: int) -> Iterator[tuple[str, list[Flip]]]:
    content = (root / path).read_bytes()
    for name, flips in _fields(path, at, RECORD_HEAD):
        if name == "sys flag":
            last = at + RECORD_HEAD.offsets["sys_flag"] + 3
            flips = [Flip(path, last, 1 << bit) for bit in (0, 2, 3, 4, 5)]
        yield name, flips
    at += RECORD_HEAD.size
    yield "born host", _ends(path, at, HOST_SIZE)
    yield "store time", _ends(path, at + HOST_SIZE, TIME_SIZE)
    yield "store host", _ends(path, at + HOST_SIZE + TIME_SIZE, HOST_SIZE)
    at += 2 * HOST_SIZE + TIME_SIZE
    yield from _fields(path, at, RECORD_MIDDLE)
    (body,) = struct.unpack_from(">i", content, at + RECORD_MIDDLE.offsets["body_length"])
    at += RECORD_MIDDLE.size
    yield "body", _ends(path, at, body)
    at += body
    yield "topic length", _ends(path, at, 1)
    yield "topic", _ends(path, at + 1, len(TOPIC))
    at += 1 + len(TOPIC)
    yield "properties length", _ends(path, at, 2)
    (size,) = struct.unpack_from(">h", content, at)
    yield from _properties(path, at + 2, content[at + 2 : at + 2 + size])


def _properties(path: str, at: int, content: bytes) -> Iterator[tuple[str, list[Flip]]]:
    for item in content.removesuffix(b"\x02").split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        text = name.decode()
        if text != "UNIQ_KEY":
            yield f"name of `{text}`", _ends(path, at, len(name))
            yield f"separator in `{text}`", [Flip(path, at + len(name), 1)]
        yield f"value of `{text}`", _ends(path, at + len(name) + 1, len(value))
        at += len(item) + 1
    if content.endswith(b"\x02"):  # 4.9 leaves it out
        yield "last separator", [Flip(path, at - 1, 2)]


def _blank(path: Path) -> int | None:
    """Return the position of the end mark in a file of the log, or None."""
    content = path.read_bytes()
    at = 0
    while at + BLANK.size <= len(content):
        size, magic = BLANK.struct.unpack_from(content, at)
        if magic == 0xCBD43194:
            return at
        if not size:
            break
        at += size
    return None


def _index(root: Path, path: str, place: int) -> Iterator[tuple[str, list[Flip]]]:
    content = (root / path).read_bytes()
    yield from _fields(path, 0, INDEX_HEADER)
    key_hash = index_key_hash(TOPIC, KEYS[VICTIM])
    slot = INDEX_HEADER.size + 4 * (key_hash % SLOTS)
    yield "slot", _ends(path, slot, 4)
    base = INDEX_HEADER.size + 4 * SLOTS
    for number in range(1, 300):
        at = base + INDEX_ENTRY.size * number
        found, offset, *_ = INDEX_ENTRY.struct.unpack_from(content, at)
        if (found, offset) == (key_hash, place):
            for name, flips in _fields(path, at, INDEX_ENTRY):
                yield f"entry's {name}", flips


# -- what is served -----------------------------------------------------------------------------


@dataclass
class Served:
    """The messages of a store that a side serves, in any form that can be compared."""

    messages: list[object] = field(default_factory=list)
    tagged: list[object] = field(default_factory=list)
    by_key: dict[str, list[object]] = field(default_factory=dict)
    errors: int = 0
    """Messages of the queue whose reading failed."""
    failure: str = ""
    """The store does not open."""


def outcome_of(good: Served, served: Served) -> str:
    """Say in a few words what became of the messages."""
    if served.failure:
        return served.failure
    intact = [message for message in served.messages if message in good.messages]
    altered = len(served.messages) - len(intact)
    counts = Counter(
        {
            "altered": altered,
            "error": served.errors,
            "lost": max(COUNT - len(served.messages) - served.errors, 0),
            "too many": max(len(served.messages) - COUNT, 0),
        }
    )
    for message in intact:
        key = KEYS[good.messages.index(message)]
        counts["not found by key"] += message not in served.by_key.get(key, [])
        counts["not found by tag"] += message not in served.tagged
    wrong = [
        message
        for key, found in served.by_key.items()
        for message in found
        if message in good.messages and KEYS[good.messages.index(message)] != key
    ]
    counts["wrong by key"] = len(wrong)
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or UNHARMED


# -- Java ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """A store that can be written, damaged and read."""

    name: str
    write: Callable[[Path, Sizes], list[int]]
    """Write the messages, and close the store; their physical offsets."""
    serve: Callable[[Sequence[Path], Sizes], list[Served]]


def _java(name: str, line: str, *options: str) -> Side:
    def write(root: Path, sizes: Sizes) -> list[int]:
        lines: list[Json] = [
            {
                "topic": TOPIC,
                "queue_id": 0,
                "body": base64.b64encode(body).decode(),
                "properties": {"KEYS": key, "TAGS": TAG, "UNIQ_KEY": f"U{key}", "colour": "blue"},
            }
            for body, key in zip(BODIES, KEYS, strict=True)
        ]
        flags = ["--flush", "sync", *options]
        (results,) = Java(line).session(root, lines, sizes=sizes, options=flags)
        return [result["physical_offset"] for result in results]

    def serve(roots: Sequence[Path], sizes: Sizes) -> list[Served]:
        queries = [f"query --topic {TOPIC} --key {key}" for key in KEYS]
        commands = "read", f"read --tags {TAG}", *queries
        found = []
        for surveyed in Java(line).survey(roots, *commands, sizes=sizes, options=options):
            assert "no end" not in surveyed.failure, surveyed.failure  # that says nothing
            answers: list[list[Json]] = [*surveyed.answers, [], []]
            read, tagged, *by_key = answers
            found.append(
                Served(
                    _messages(read),
                    _messages(tagged),
                    dict(zip(KEYS, map(_messages, by_key), strict=False)),
                    sum("error" in answer for answer in read),
                    "does not start" if surveyed.failure else "",
                )
            )
        return found

    return Side(name, write, serve)


def _messages(answers: list[Json]) -> list[object]:
    return [json.dumps(answer, sort_keys=True) for answer in answers if "body" in answer]


# -- Firetrail ----------------------------------------------------------------------------------


def _firetrail(name: str, *, sealed: bool = False) -> Side:
    def write(root: Path, sizes: Sizes) -> list[int]:
        config = sizes.config(flush=FlushMode.SYNC, property_crc=sealed)
        with BrokerStore.open(root, config, system=SYSTEM) as store:
            return [
                store.embedded.put(
                    Message(
                        TOPIC,
                        body,
                        keys=(key,),
                        tags=TAG,
                        properties={"UNIQ_KEY": f"U{key}", "colour": "blue"},
                    )
                ).physical_offset
                for body, key in zip(BODIES, KEYS, strict=True)
            ]

    def serve(roots: Sequence[Path], sizes: Sizes) -> list[Served]:
        return [_served(root, sizes.config(property_crc=sealed)) for root in roots]

    return Side(name, write, serve)


def _served(root: Path, config: object) -> Served:
    served = Served()
    try:
        with BrokerStore.open(root, config, system=SYSTEM) as store:  # type: ignore[arg-type]
            served.messages, served.errors = _walked(store, None)
            served.tagged, _ = _walked(store, TAG)
            for key in KEYS:
                try:
                    found = store.reads.query_buffers(TOPIC, key).buffers
                    served.by_key[key] = [decode_message(buffer) for buffer in found]
                except FiretrailError:
                    served.by_key[key] = []
    except FiretrailError as error:
        named = str(root) in str(error)
        served.failure = "refusal that names the file" if named else "does not start"
    return served


def _walked(store: BrokerStore, tags: str | None) -> tuple[list[object], int]:
    """Return the messages of the queue as a consumer reads it, and how many reads failed."""
    found: list[object] = []
    errors = 0
    offset, end = 0, store.queues.max_offset(TOPIC, 0)
    while offset < end:
        try:
            result = store.embedded.get(TOPIC, 0, offset, 1, tags)
            found += result.messages()
            offset = max(offset + 1, result.next_offset)
        except FiretrailError:
            errors += 1
            offset += 1
    return found, errors


SIDES = [
    _java("RocketMQ 4.9.8", "v4"),
    _java("RocketMQ 5.5.1", "v5"),
    _java("RocketMQ 5.5.1 (sealed)", "v5", "--prop-crc"),
    _firetrail("Firetrail"),
    _firetrail("Firetrail (sealed)", sealed=True),
]
"""Sealed: every record has a checksum over all of it, the property ``__CRC32#``."""


def outcomes(side: Side, folder: Path, sizes: Sizes, only: str = "") -> dict[str, str]:
    """Return, by file and field, how the side handles a flipped bit.

    Several bits of a field are flipped in turn; each distinct outcome is listed. Only fields whose
    name begins with ``only`` are tried.
    """
    folder.mkdir(parents=True)
    root = folder / "good"
    places = side.write(root, sizes)
    flips = [
        (name, flip)
        for name, several in flips_of(root, sizes, places[VICTIM]).items()
        for flip in several
        if name.startswith(only)
    ]
    copies = []
    for number, (_, flip) in enumerate(flips):
        copy = shutil.copytree(root, folder / f"flip{number}")
        content = bytearray((copy / flip.path).read_bytes())
        content[flip.at] ^= flip.mask
        (copy / flip.path).write_bytes(content)
        copies.append(copy)
    good, *served = side.serve([root, *copies], sizes)
    assert outcome_of(good, good) == UNHARMED, outcome_of(good, good)
    found: dict[str, set[str]] = {}
    for (name, _), one in zip(flips, served, strict=True):
        text = outcome_of(good, one)
        found.setdefault(name, set()).add(text)
    shutil.rmtree(folder)
    return {name: " or ".join(sorted(texts, reverse=True)) for name, texts in found.items()}


def listing(columns: dict[str, dict[str, str]]) -> list[str]:
    """Return the outcomes of all sides as a Markdown list.

    Fields with the same outcomes share an item, and so do sides with the same outcome.
    """
    items: dict[tuple[str, ...], list[str]] = {}
    fields = dict.fromkeys(name for column in columns.values() for name in column)
    for name in fields:
        kind, _, field_name = name.partition(": ")
        cells = (kind, *(column.get(name, "no such field") for column in columns.values()))
        items.setdefault(cells, []).append(field_name)
    lines = []
    for (kind, *outcomes), names in items.items():
        lines += _wrapped("- ", f"**{kind}:** {', '.join(names)}")
        for outcome in dict.fromkeys(outcomes):
            ends = zip(columns, outcomes, strict=True)
            sides = [side for side, end in ends if end == outcome]
            named = "all stores" if len(sides) == len(columns) else ", ".join(sides)
            lines += _wrapped("  - ", f"{named}: {outcome}")
    return lines


def _wrapped(bullet: str, text: str) -> list[str]:
    """Wrap an item of a list as the pages of the docs are wrapped."""
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_on_hyphens=False,
    )
