"""Bits that flip and files that end early, in every kind of file that a broker keeps.

One change at a time to a folder that a broker has left. The next broker refuses to start and names
what is wrong, or serves: messages as they were sent, or an error; topics, groups and offsets as
they were saved last or the time before; and nothing but a FiretrailError is ever raised.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash.oracle import Violation

from firetrail.broker.broker import Broker
from firetrail.client import Message, Producer, PullConsumer, SimpleConsumer
from firetrail.errors import FiretrailError
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.store.settings.store_config import StoreConfig

TOPIC, GROUP = "T1", "G1"
STORE = StoreConfig().for_files(
    commit_log_file_size=16384, consume_queue_file_size=200, index_slots=16, index_entries=64
)
STORE = STORE.replace(max_message_size=8192)


@dataclass
class Kept:
    """The folder that a broker has left, and its messages."""

    root: Path
    bodies: dict[tuple[int, int], bytes]
    """By queue id and queue offset."""
    offsets: set[int]
    """Valid offsets of the group in queue 0: the last two that were saved."""

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())


async def made(root: Path) -> Kept:
    """Create a folder with messages, a group's offsets, delays, pops, and each file saved twice."""
    bodies: dict[tuple[int, int], bytes] = {}
    for turn in (1, 2):
        async with Broker.running(root, store=STORE) as broker:
            async with Producer(broker.namesrv) as producer:
                for number in range(30):
                    body = b"%d of %d " % (number, turn) * 20
                    sent = await producer.send(Message(TOPIC, body, keys=(f"k{number}",)))
                    bodies[sent.queue.queue_id, sent.queue_offset] = body
                await producer.send(Message(TOPIC, b"later", delay_level=18))
            async with PullConsumer(broker.namesrv, GROUP) as consumer:
                queue = (await consumer.queues(TOPIC))[0]
                await consumer.commit(queue, turn)
            start = ConsumeFromWhere.FIRST_OFFSET
            async with SimpleConsumer(broker.namesrv, "G2", {TOPIC: "*"}, start=start) as popper:
                await popper.receive(invisible_s=60)
    return Kept(root, bodies, {1, 2})


def spoilt(content: bytes, source: random.Random) -> tuple[str, bytes]:
    """Return the content with one bit of its data flipped or with its end cut off, and how."""
    written = [at for at, byte in enumerate(content) if byte] or list(range(len(content)))
    if source.random() < 0.2 or not written:
        length = source.choice((0, source.randrange(len(content) + 1)))
        return f"cut to {length}", content[:length]
    at, bit = source.choice(written), source.randrange(8)
    flipped = bytes([content[at] ^ 1 << bit])
    return f"bit {bit} of byte {at}", content[:at] + flipped + content[at + 1 :]


def chosen(kept: Kept, source: random.Random) -> Iterator[Path]:
    """Yield files endlessly, each kind as often as the others."""
    kinds: dict[str, list[Path]] = {}
    for path in kept.files:
        inside = path.relative_to(kept.root)
        kind = inside.name if len(inside.parts) == 1 or inside.parts[0] == "config" else ""
        kinds.setdefault(kind or inside.parts[0], []).append(path)
    while True:
        for name in sorted(kinds):
            yield source.choice(kinds[name])


async def spoil(folder: Path, seed: int, count: int) -> Counter[str]:
    """Spoil ``count`` times; figures."""
    source = random.Random(seed)
    kept = await made(folder / "kept")
    figures = Counter[str]()
    for number, path in zip(range(count), chosen(kept, source), strict=False):
        inside = path.relative_to(kept.root)
        what, content = spoilt(path.read_bytes(), source)
        copy = folder / str(number)
        shutil.copytree(kept.root, copy)
        (copy / inside).write_bytes(content)
        try:
            outcome = await _tried(copy, kept)
        except Exception as error:
            error.add_note(f"seed {seed}, {number}: {inside}: {what}")
            raise
        figures["cut" if what.startswith("cut") else "bits flipped"] += 1
        figures[f"spoilt and {outcome}"] += 1
        shutil.rmtree(copy)
    return figures


async def _tried(root: Path, kept: Kept) -> str:
    try:
        async with Broker.running(root, store=STORE) as broker:
            _check_tables(broker, kept)
            return "served" if _read(broker, kept) else "served with errors"
    except FiretrailError as error:
        if str(root) not in str(error):
            raise Violation(f"refused without naming a file: {error!r}") from error
        return "refused by name"


def _check_tables(broker: Broker, kept: Kept) -> None:
    if broker.offsets.get(GROUP, TOPIC, 0) not in kept.offsets:
        raise Violation(f"I8: the group is at {broker.offsets.get(GROUP, TOPIC, 0)}")
    topic = broker.topics.get(TOPIC)
    if topic is None or topic.read_queue_nums != 4:
        raise Violation(f"I8: the topic is {topic}")


def _read(broker: Broker, kept: Kept) -> bool:
    """Return whether every message can be read; an altered message is a violation."""
    whole = True
    for queue_id, offset in kept.bodies:
        try:
            got = list(broker.store.get(TOPIC, queue_id, offset, 1).messages())
        except FiretrailError:
            got = []
        for record in got:
            if record.body not in kept.bodies.values():
                raise Violation(f"I8: {queue_id}, {offset} reads {record}")
        whole &= bool(got) and got[0].body == kept.bodies[queue_id, offset]
    return whole
