"""A consumer that goes on where it stopped: it follows a queue and keeps its offset in a file.

The offset is written after the work is done, so a crash repeats at most the message that was being
worked on: at least once, as with a broker.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from firetrail import Message, Record, Store


def consume(store: Store, topic: str, queue_id: int, progress: Path) -> Iterator[Record]:
    """The messages that were not worked on yet, and then new ones until none comes for a while."""
    start = int(progress.read_text()) if progress.exists() else None
    for message in store.follow(topic, queue_id, start, timeout=0.3):
        yield message
        save(progress, message.queue_offset + 1)


def save(progress: Path, offset: int) -> None:
    """Replace the file, so that a crash leaves the old number or the new one."""
    written = progress.with_suffix(".new")
    written.write_text(str(offset))
    written.replace(progress)


def produce(store: Store, numbers: range) -> None:
    """Put some messages."""
    for number in numbers:
        store.put(Message("jobs", f"job {number}".encode()))


def main() -> None:
    """Two runs of a consumer, with a producer beside each."""
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "store") as store:
        progress = Path(folder) / "jobs-0.offset"
        for run, numbers in enumerate((range(3), range(3, 5))):
            producer = threading.Thread(target=produce, args=(store, numbers))
            producer.start()
            done = [message.body.decode() for message in consume(store, "jobs", 0, progress)]
            print(f"run {run}: {', '.join(done)}")
            producer.join()


if __name__ == "__main__":
    main()
