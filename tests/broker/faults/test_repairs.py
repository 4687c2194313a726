"""Each kind of problem that fsck reports: its advice is followed, and a broker continues.

A store that a broker has written is damaged. The advice of fsck is followed word for word, each
command in a copy of its own. Then fsck finds nothing, and a broker delivers the messages that the
oracle expects: every message that the damage did not hit, in order, under its own topic and queue,
and new messages.
"""

import json
import re
import shutil
import subprocess
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from tests.broker.brokers import Talk, talking
from tests.broker.brokers import records as decoded
from tests.stores import field_position, flip, log_file, overwrite, records, truncate

from firetrail import Store, StoreConfig
from firetrail.cli.main import main
from firetrail.format.files.checkpoint import CHECKPOINT
from firetrail.format.files.index import entry_at, slot_at
from firetrail.format.layout import INDEX_ENTRY
from firetrail.format.record import Record
from firetrail.store.problems import TIMER_KINDS, WARNINGS, ProblemKind
from firetrail.store.root.watermark import SLOT_SIZE

SLOTS = 20
CONFIG = StoreConfig().for_files(
    commit_log_file_size=4096, consume_queue_file_size=400, index_slots=SLOTS, index_entries=64
)
COUNT = 72
QUEUES = [("T1", 0), ("T1", 1), ("T1", 2), ("T2", 0)]
HIT = 40
"""The message that is damaged."""
BODY, QUEUE_ID, QUEUE_OFFSET = 88, 12, 20
COMMAND = re.compile(r"'(firetrail [^']+)'|(truncate -s \d+ \S+)|(move it out of the store)")


class Stores(NamedTuple):
    plain: Path
    sealed: Path


async def fill(talk: Talk) -> None:
    for number in range(COUNT):
        topic, queue_id = QUEUES[number % len(QUEUES)]
        keys = f"KEYS\x01k{number}\x02TAGS\x01A\x02UNIQ_KEY\x01U{number}\x02WAIT\x01true"
        await talk.send(topic, b"%04d" % number, e=queue_id, i=keys)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    folder = tmp_path_factory.mktemp("repairs")
    for name, sealed in (("plain", False), ("sealed", True)):
        store = CONFIG.replace(property_crc=sealed)
        async with talking(folder / name, store=store) as talk:
            await fill(talk)
    return Stores(folder / "plain", folder / "sealed")


# -- damage -----------------------------------------------------------------------------------


def messages(root: Path) -> list[Record]:
    return [record for record in records(root) if record.topic in ("T1", "T2")]


def spoil(at: int, bit: int = 0, hit: int = HIT) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path, start = log_file(root, messages(root)[hit].physical_offset)
        flip(path, start + at, bit)

    return damage


def write(at: int, content: bytes, hit: int = HIT) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path, start = log_file(root, messages(root)[hit].physical_offset)
        overwrite(path, start + at, content)

    return damage


def in_topic(content: bytes) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path, start = log_file(root, messages(root)[HIT].physical_offset)
        at = field_position(path.read_bytes(), int(path.name), start, "topic")
        overwrite(path, at, content)

    return damage


def with_file(place: str, change: Callable[[Path], object]) -> Callable[[Path], None]:
    """Change the n-th file of a folder."""

    def damage(root: Path) -> None:
        folder, _, number = place.rpartition("/")
        change(sorted((root / folder).iterdir())[int(number)])

    return damage


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def cut_off_zeros(path: Path) -> None:
    """Leave all records, but not the unused end of the file."""
    content = path.read_bytes()
    path.write_bytes(content.rstrip(b"\0") + bytes(10))
    assert path.stat().st_size < len(content)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def double(path: Path) -> None:
    shutil.copy(path, path.with_name(f"{int(path.name) + 100:020}"))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fill_up(path: Path) -> None:
    """Make the last record so long that no end mark of the file fits after it."""
    content = bytearray(path.read_bytes())
    last = [
        r
        for r in records(path.parent.parent)
        if log_file(path.parent.parent, r.physical_offset)[0] == path
    ][-1]
    at = last.physical_offset - int(path.name)
    more = len(content) - 4 - at - last.size
    size = len(content) - 4 - at
    content[at : at + 4] = size.to_bytes(4, "big")
    length_at = at + last.size - len(last.raw_properties) - 2
    content[length_at : length_at + 2] = (len(last.raw_properties) + more).to_bytes(2, "big")
    content[at + last.size : at + size] = b"x" * more
    content[at + size :] = bytes(4)
    path.write_bytes(content)


def lose_the_end(root: Path) -> None:
    overwrite(sorted((root / "commitlog").iterdir())[-1], 0, bytes(4096))


def older(path: Path) -> None:
    time = int.from_bytes(path.read_bytes()[:8], "big")
    overwrite(path, 0, (time - 1).to_bytes(8, "big"))


def flip_slot(path: Path) -> None:
    content = path.read_bytes()
    slot = next(n for n in range(SLOTS) if any(content[slot_at(n) : slot_at(n) + 4]))
    flip(path, slot_at(slot) + 3)


def flip_entry(field: str) -> Callable[[Path], None]:
    return lambda path: flip(path, entry_at(SLOTS, 9) + INDEX_ENTRY.offsets[field] + 3)


def add_entry(root: Path) -> None:
    with Store.open(root, CONFIG) as store:
        index = store._engine.index
        assert index is not None
        file = index.files[-1]
        offset = file.offset_of(file.header.next_entry - 1)
        record = store.at(offset)
        assert record is not None
        file.append(array("q", (12345, offset, record.store_time)), 0, 1)


class Lost(NamedTuple):
    """A part of a file of the log."""

    file: int
    begin: int = 0


class Case(NamedTuple):
    kind: ProblemKind
    damage: Callable[[Path], None]
    hit: tuple[int, ...] | Lost = ()
    """The messages that cannot be delivered after a salvage."""

    def hits(self, good: Path) -> set[int]:
        if not isinstance(self.hit, Lost):
            return set(self.hit)
        file = sorted((good / "commitlog").iterdir())[self.hit.file]
        lost = range(int(file.name) + self.hit.begin, int(file.name) + 4096)
        return {
            number
            for number, message in enumerate(messages(good))
            if message.physical_offset in lost or message.physical_offset + message.size in lost
        }


LOG, INDEX, UNITS = "commitlog", "index", "consumequeue/T1/0"
CASES = {
    "a short log file": Case(ProblemKind.FILE_SIZE, with_file(f"{LOG}/1", shorten), Lost(1, 2000)),
    "a short last log file": Case(ProblemKind.FILE_SIZE, with_file(f"{LOG}/-1", cut_off_zeros)),
    "a long log file": Case(ProblemKind.FILE_SIZE, with_file(f"{LOG}/1", lengthen)),
    "a short queue file": Case(
        ProblemKind.FILE_SIZE, with_file(f"{UNITS}/0", lambda p: p.write_bytes(bytes(100)))
    ),
    "a lost log file": Case(ProblemKind.FILE_MISSING, with_file(f"{LOG}/1", Path.unlink), Lost(1)),
    "a lost file of the broker": Case(
        ProblemKind.FILE_MISSING, lambda root: (root / "config" / "topics.json").unlink()
    ),
    "a damaged file of the broker": Case(
        ProblemKind.CONFIG_UNREADABLE, lambda root: truncate(root / "config" / "topics.json", 0)
    ),
    "an overlap": Case(ProblemKind.FILE_OVERLAP, with_file(f"{LOG}/1", double)),
    "an unreadable file": Case(ProblemKind.FILE_UNREADABLE, with_file(f"{INDEX}/0", make_folder)),
    "magic": Case(ProblemKind.RECORD_MAGIC, spoil(4), (HIT,)),
    "magic of the first": Case(ProblemKind.RECORD_MAGIC, spoil(4, hit=0), (0,)),
    "magic of the last": Case(ProblemKind.RECORD_MAGIC, spoil(4, hit=COUNT - 1), (COUNT - 1,)),
    "size": Case(ProblemKind.RECORD_SIZE, write(0, b"\0\0\0\1"), (HIT,)),
    "cut": Case(ProblemKind.RECORD_CUT, write(0, b"\x7f\xff\xff\xff"), (HIT,)),
    "offset": Case(ProblemKind.RECORD_OFFSET, spoil(35), (HIT,)),
    "body length": Case(ProblemKind.RECORD_BODY_LENGTH, write(84, b"\x7f\xff\xff\xff"), (HIT,)),
    "topic length": Case(ProblemKind.RECORD_TOPIC_LENGTH, write(BODY + 4, b"\x7f"), (HIT,)),
    "properties length": Case(
        ProblemKind.RECORD_PROPERTIES_LENGTH, write(BODY + 7, b"\x7f\xff"), (HIT,)
    ),
    "no topic": Case(ProblemKind.RECORD_QUEUE, in_topic(b"./"), (HIT,)),
    "negative queue": Case(ProblemKind.RECORD_QUEUE, spoil(QUEUE_ID, 7), (HIT,)),
    "body": Case(ProblemKind.BODY_CRC, spoil(BODY), (HIT,)),
    "sealed": Case(ProblemKind.PROPERTY_CRC, spoil(QUEUE_OFFSET + 7), (HIT,)),
    "another topic": Case(ProblemKind.QUEUE_OFFSET, in_topic(b"U1"), (HIT,)),
    "another known topic": Case(ProblemKind.QUEUE_OFFSET, in_topic(b"T2"), (HIT,)),
    "the next queue": Case(ProblemKind.QUEUE_OFFSET, spoil(QUEUE_ID + 3), (HIT,)),
    "the next queue, last": Case(
        ProblemKind.QUEUE_OFFSET, spoil(QUEUE_ID + 3, hit=COUNT - 4), (COUNT - 4,)
    ),
    "a queue before": Case(ProblemKind.QUEUE_OFFSET, spoil(QUEUE_ID + 3, 1, HIT + 2), (HIT + 2,)),
    "an unknown queue": Case(ProblemKind.QUEUE_OFFSET, spoil(QUEUE_ID + 3, 5), (HIT,)),
    "a higher number": Case(ProblemKind.QUEUE_OFFSET, spoil(QUEUE_OFFSET + 6)),
    "a lower number": Case(ProblemKind.QUEUE_OFFSET, write(QUEUE_OFFSET + 7, b"\3")),
    "the number of the first": Case(ProblemKind.QUEUE_OFFSET, spoil(QUEUE_OFFSET + 6, hit=0)),
    "the number of the last": Case(
        ProblemKind.QUEUE_OFFSET, spoil(QUEUE_OFFSET + 6, hit=COUNT - 1)
    ),
    "prepared": Case(ProblemKind.QUEUE_OFFSET, spoil(39, 2), (HIT,)),
    "hole": Case(ProblemKind.LOG_HOLE, write(0, bytes(100)), (HIT,)),
    "lost end": Case(ProblemKind.LOG_END, lose_the_end, Lost(-1)),
    "full file": Case(ProblemKind.FILE_END, with_file(f"{LOG}/0", fill_up)),
    "wrong unit": Case(ProblemKind.UNIT_WRONG, with_file(f"{UNITS}/0", lambda p: flip(p, 43))),
    "missing unit": Case(
        ProblemKind.UNIT_MISSING, with_file(f"{UNITS}/0", lambda p: overwrite(p, 40, bytes(20)))
    ),
    "stray unit": Case(
        ProblemKind.UNIT_STRAY, with_file(f"{UNITS}/0", lambda p: overwrite(p, 385, b"\1"))
    ),
    "no index file": Case(ProblemKind.INDEX_FILE, with_file(f"{INDEX}/0", lambda p: flip(p, 0, 7))),
    "header": Case(ProblemKind.INDEX_HEADER, with_file(f"{INDEX}/0", lambda p: flip(p, 7))),
    "slot": Case(ProblemKind.INDEX_SLOT, with_file(f"{INDEX}/0", flip_slot)),
    "chain": Case(ProblemKind.INDEX_CHAIN, with_file(f"{INDEX}/0", flip_entry("previous"))),
    "entry": Case(ProblemKind.INDEX_ENTRY, with_file(f"{INDEX}/0", flip_entry("seconds"))),
    "lost index file": Case(ProblemKind.INDEX_MISSING, with_file(f"{INDEX}/1", Path.unlink)),
    "stray index file": Case(ProblemKind.INDEX_STRAY, add_entry),
    "no checkpoint": Case(
        ProblemKind.CHECKPOINT_UNREADABLE, lambda root: flip(root / "checkpoint", 8, 7)
    ),
    "checkpoint ahead": Case(
        ProblemKind.CHECKPOINT_AHEAD,
        lambda root: flip(root / "checkpoint", CHECKPOINT.offsets["physic_timestamp"] + 1, 3),
    ),
    "checkpoint behind": Case(
        ProblemKind.CHECKPOINT_BEHIND, lambda root: older(root / "checkpoint")
    ),
    "watermark": Case(
        ProblemKind.WATERMARK_TORN, lambda root: flip(root / "firetrail.watermark", SLOT_SIZE + 30)
    ),
}


def test_every_kind_of_damage_has_a_case() -> None:
    # The start of a broker repairs the timer: tests/broker/timer/test_wheel_damage.py.
    assert {case.kind for case in CASES.values()} == set(ProblemKind) - WARNINGS - TIMER_KINDS


# -- repairs ----------------------------------------------------------------------------------


def follow(command: str, root: Path, damaged: Path, target: Path) -> Path:
    """Follow the advice; return the store to continue with."""
    words = command.replace(str(damaged), str(root)).replace("DIR", str(target)).split()
    if words[0] == "firetrail":
        assert main(words[1:]) == 0, command
    else:
        subprocess.run(words, check=True, cwd=root)
    return target if "salvage" in words else root


async def delivered(talk: Talk) -> dict[tuple[str, int], list[Record]]:
    """Return what consumers get from all queues, with a new message at the end of each."""
    found: dict[tuple[str, int], list[Record]] = {}
    for topic, queue_id in QUEUES:
        await talk.send(topic, b"new", e=queue_id)
        got: list[Record] = []
        offset = 0
        while not got or got[-1].body != b"new":
            answer = await talk.pull(topic, offset, queueId=queue_id, sysFlag=6)
            got += decoded(answer.content)
            offset = int(answer.fields["nextBeginOffset"])
        found[topic, queue_id] = got
    return found


async def check_delivery(root: Path, name: str, command: str, hit: set[int]) -> None:
    async with talking(root, store=CONFIG) as talk:
        found = await delivered(talk)
    all_bodies = []
    for place, (key, got) in enumerate(found.items()):
        assert [record.queue_offset for record in got] == list(range(len(got)))
        assert {(record.topic, record.queue_id) for record in got} == {key}
        bodies = [int(record.body) for record in got[:-1]]
        assert bodies == sorted(bodies) and all(b % len(QUEUES) == place for b in bodies)
        all_bodies += bodies
    if "truncate-log" in command:
        before = range(max(all_bodies, default=-1) + 1)
        assert sorted(all_bodies) == sorted(set(before) - (hit if name == "prepared" else set()))
        assert len(before) >= min(hit, default=0)
    else:
        assert set(range(COUNT)) - hit <= set(all_bodies)


@pytest.mark.parametrize("name", CASES)
async def test_the_advised_command_repairs_the_store(
    name: str, stores: Stores, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, damage, _ = CASES[name]
    good = stores.sealed if kind is ProblemKind.PROPERTY_CRC else stores.plain
    damaged = shutil.copytree(good, tmp_path / "damaged")
    damage(damaged)
    capsys.readouterr()
    assert main(["fsck", str(damaged), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    problems = [problem for problem in reported["problems"] if problem["kind"] == kind]
    assert problems, reported["problems"]
    assert reported["advice"]
    text = " ".join([reported["advice"], *(problem["detail"] for problem in problems)])
    commands = ["".join(found) for found in COMMAND.findall(text)]
    if not commands:
        assert re.search("restore .*from a copy", reported["advice"])
        commands = ["put back"]
    for number, command in enumerate(commands):
        root = shutil.copytree(damaged, tmp_path / f"copy-{number}")
        if command == "put back":
            file = problems[0]["file"]
            if (root / file).is_dir():
                (root / file).rmdir()
            shutil.copy(good / file, root / file)
        elif command.startswith("move"):
            (root / problems[0]["file"]).unlink()
        else:
            root = follow(command, root, damaged, tmp_path / f"saved-{number}")
        capsys.readouterr()
        assert main(["fsck", str(root)]) == 0, capsys.readouterr().out
        await check_delivery(root, name, command, CASES[name].hits(good))
