"""Flipped bits in the files of a closed store: damage is never served as good, nor lost silently.

One bit of one file is flipped at a time. Then the store either opens, and returns every body as it
was put or raises a FiretrailError, or it refuses to open and names the file. It never drops the
data after the flipped bit, and never raises anything but a FiretrailError.
"""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.oracle import History, Stored, Violation
from tests.crash.world.disk import Disk, Image, write_image
from tests.crash.world.simulation import DEEP, Process, Producer, scratch, tiny_config

from firetrail import FiretrailError, Store
from firetrail.errors import StoreDamagedError

SAMPLE = 5000 if DEEP else 60
KINDS = ("commitlog", "consumequeue", "index", "checkpoint", "firetrail.watermark", "lock")
SIZES = {"commit_log_file_size": 4096, "consume_queue_file_size": 100, "max_message_size": 2048}


def closed_store(sealed: bool) -> tuple[Image, list[Stored]]:
    """Return the files of a store with some dozens of messages, and the messages."""
    with scratch() as folder:
        (folder / "live").mkdir()
        config = tiny_config("sync", property_crc=sealed, **SIZES)
        process = Process(Disk(folder / "live"), config, History(), seed=1)
        process.open()
        producer = Producer(random.Random(7))
        for _ in range(24):
            process.put(producer.message())
            process.world.pause(0.5)
        process.put_batch(producer.batch())
        process.close()
        snapshot = process.disk.snapshot()
        image = snapshot.image(4096, snapshot.pending(4096))
        return image, process.history.messages


def flips(image: Image, kind: str) -> Iterator[tuple[str, int, int]]:
    """Places of bits: all of what was written, a byte in a hundred of the rest."""
    source = random.Random(kind)
    places = []
    for path, content in image.items():
        if path.partition("/")[0] != kind or content is None:
            continue
        for at, byte in enumerate(content):
            if byte or at % 100 == 0:
                places += [(path, at, bit) for bit in range(8)]
    yield from source.sample(places, min(SAMPLE, len(places)))


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_noticed_or_harmless(kind: str, sealed: bool) -> None:
    image, messages = closed_store(sealed)
    outcomes = Counter[str]()
    with scratch() as folder:
        for path, at, bit in flips(image, kind):
            content = image[path]
            assert content is not None
            flipped = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
            try:
                outcomes[try_store(folder, image | {path: flipped}, messages, path, sealed)] += 1
            except Exception as error:
                error.add_note(f"bit {bit} of byte {at} of {path}")
                raise
    print(f"{outcomes.total()} flips in {kind}: {dict(outcomes)}")
    assert outcomes.total() > 0


def try_store(folder: Path, image: Image, messages: list[Stored], path: str, sealed: bool) -> str:
    """Open the store, read everything and close it; return the outcome."""
    root = folder / f"{random.getrandbits(64):x}"
    write_image(image, root)
    config = tiny_config("sync", property_crc=sealed, **SIZES)
    process = Process(Disk(root), config, History(), seed=1)
    try:
        store = process.open()
    except StoreDamagedError as error:
        if not error.file.startswith(str(root)):
            raise Violation(f"refused without naming a file: {error}") from error
        return "refused"
    except FiretrailError as error:
        if str(root) not in str(error):
            raise Violation(f"refused without naming a file: {error}") from error
        return "refused"
    try:
        end = messages[-1].end
        if store.log_range != (0, end):
            raise Violation(f"I1: the log was 0..{end}, is {store.log_range}")
        errors = read_all(store, messages)
    finally:
        process.kill()
    return "errors" if errors else "opened"


def read_all(store: Store, messages: list[Stored]) -> int:
    """Read by queue, by place and by key; how many reads raised an error or found too little."""
    errors = 0
    in_queues = [message for message in messages if message.is_in_queue]
    for message in messages:
        if message.is_in_queue:
            errors += not _reads(store, message, in_queues)
        try:
            record = store.at(message.physical_offset)
            if record is not None and record.body != message.body:
                raise Violation(f"I8: at {message.physical_offset}: {record.body!r}")
            errors += record is None
        except FiretrailError:
            errors += 1
        for key in message.keys:
            errors += not _finds(store, message, key)
    return errors


def _reads(store: Store, message: Stored, messages: list[Stored]) -> bool:
    """Return whether a get at the message's queue offset returns the message.

    A message that cannot be found is skipped, as if it were deleted, and the get returns a later
    one. It must never return a message of another queue, or a body that was not put.
    """
    later = [
        other.body
        for other in messages
        if other.queue == message.queue and other.queue_offset >= message.queue_offset
    ]
    try:
        result = store.get(message.topic, message.queue_id, message.queue_offset, 1)
        for record in result.messages():
            if record.body not in later:
                raise Violation(
                    f"I8: {message.queue} {message.queue_offset} reads {record}, was {message}"
                )
            return record.body == message.body
    except FiretrailError:
        pass
    return False


def _finds(store: Store, message: Stored, key: str) -> bool:
    try:
        bodies = [record.body for record in store.query(message.topic, key, max_count=64)]
    except FiretrailError:
        return False
    return message.body in bodies
