"""A consumer that resumes where it stopped: it follows a queue and keeps its offset in a file.

The offset is written after a message is processed. A crash therefore repeats at most the message
in progress: delivery is at least once, as with a broker.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from firetrail import Message, Record, Store


def consume(store: Store, topic: str, queue_id: int, progress: Path) -> Iterator[Record]:
    """Yield unprocessed messages, then new ones until none arrives for a while."""
    start = int(progress.read_text()) if progress.exists() else None
    for message in store.follow(topic, queue_id, start, timeout=0.3):
        yield message
        save(progress, message.queue_offset + 1)


def save(progress: Path, offset: int) -> None:
    """Replace the file atomically: a crash leaves the old offset or the new one."""
    written = progress.with_suffix(".new")
    written.write_text(str(offset))
    written.replace(progress)


def produce(store: Store, numbers: range) -> None:
    """Put some messages."""
    for number in numbers:
        store.put(Message("jobs", f"job {number}".encode()))


def main() -> None:
    """Run a consumer twice, each time with a producer in another thread."""
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
