"""Real processes that put messages and are killed.

``python -m tests.crash.world.child`` is a server that reads one JSON request per line, forks a
child that opens a store and works on it, and answers with the reports of the child until it died or
was done. Forking from a small, warm process takes only milliseconds per child.

The child reports each message before it puts it, and again, with its position, when the store has
acknowledged it. The request says whether the child kills itself (SIGKILL) before its n-th operation
on the file system, or the server kills it after some milliseconds.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.world.simulation import Producer, tiny_config

from firetrail import Message, PutResult, Store
from firetrail.system import Files, System

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Life:
    """The work of a child process, and how the process ends."""

    store: str
    mode: str
    seed: int
    first_serial: int = 0
    steps: int = 30
    threads: int = 1
    kill_at_operation: int = 0
    kill_after_ms: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Ended:
    """The end of a child process, and what it had reported."""

    killed: bool
    error: str
    last_operation: str
    sent: list[int]
    acknowledged: dict[int, list[int]]
    """Queue offset, physical offset, size and store time by serial number."""
    flushed: int
    """How many of the acknowledged messages were flushed."""
    expired: bool
    """Whether old messages may have been deleted."""


class KillingFiles(Files):
    """Kills its process before the n-th change that it is asked to make."""

    def __init__(self, report: int, kill_at: int) -> None:
        self._report = report
        self._kill_at = kill_at
        self._count = 0
        self._guard = threading.Lock()

    def _step(self, kind: str) -> None:
        with self._guard:
            self._count += 1
            if self._count == self._kill_at:
                os.write(self._report, f"O {kind}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: Path, *, writable: bool, create: bool = False) -> int:
        if create:
            self._step("create")
        return super().open(path, writable=writable, create=create)

    def open_new(self, path: Path) -> int:
        self._step("open_new")
        return super().open_new(path)

    def give_name(self, descriptor: int, path: Path) -> None:
        self._step("give_name")
        super().give_name(descriptor, path)

    def set_size(self, descriptor: int, size: int) -> None:
        self._step("set_size")
        super().set_size(descriptor, size)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        self._step("allocate")
        super().allocate(descriptor, offset, length)

    def write(self, descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        self._step("write")
        return super().write(descriptor, buffers, offset)

    def write_zeros(self, descriptor: int, offset: int, end: int) -> None:
        self._step("write_zeros")
        super().write_zeros(descriptor, offset, end)

    def sync(self, descriptor: int) -> None:
        self._step("sync")
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self._step("sync_folder")
        super().sync_folder(path)

    def begin_folder(self, path: Path) -> None:
        self._step("make_folder")
        super().begin_folder(path)

    def rename(self, path: Path, target: Path) -> None:
        self._step("rename")
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        self._step("remove")
        super().remove(path)

    def used_ratio(self, path: Path) -> float:
        return 0.1


# -- the child ------------------------------------------------------------------------------------


def live(life: Life, report: int) -> None:
    """Open the store, work on it, close it."""
    files = KillingFiles(report, life.kill_at_operation)
    config = tiny_config(life.mode, **life.settings)
    store = Store.open(life.store, config, system=System(files=files))
    workers = [
        threading.Thread(target=_work, args=(store, life, number, report))
        for number in range(1, life.threads)
    ]
    for worker in workers:
        worker.start()
    _work(store, life, 0, report)
    for worker in workers:
        worker.join()
    if life.kill_after_ms:
        time.sleep(60)  # it will not come to that
    store.close()
    os.write(report, b"D\n")


def _work(store: Store, life: Life, number: int, report: int) -> None:
    """Put messages whose serial numbers leave ``number`` when divided by the threads."""
    source = random.Random(f"{life.seed} {number}")
    for step in range(life.steps):
        serial = life.first_serial + step * life.threads + number
        chance = random.Random(f"{life.seed} {serial}").random()
        message = message_of(life.seed, serial)
        os.write(report, f"S {serial}\n".encode())
        result = store.put_batch([message]) if chance < 0.1 else store.put(message)
        os.write(report, acknowledgement(serial, result))
        if chance > 0.95 and number == 0:
            os.write(report, b"G\n")  # puts of other threads from here on may miss the flush
            store.flush()
            os.write(report, f"F {serial}\n".encode())
        elif chance > 0.92 and life.threads == 1:
            os.write(report, b"X\n")
            store.delete_expired(forced=True)
        if life.kill_after_ms:
            time.sleep(source.choice((0, 0, 0.001, 0.005)))


def acknowledgement(serial: int, result: PutResult) -> bytes:
    """Return a line which says where the message is stored."""
    place = (result.queue_offset, result.physical_offset, result.size, result.store_time)
    return f"A {serial} {' '.join(map(str, place))}\n".encode()


def message_of(seed: int, serial: int) -> Message:
    """Return the message with this serial number, which its body begins with."""
    if random.Random(f"{seed} {serial}").random() < 0.1:  # goes as a batch, which takes no others
        return Message("orders", b"%d:batch" % serial, keys=["k1"])
    message = Producer(random.Random(f"{seed} message {serial}")).message()
    message.body = b"%d:" % serial + message.body
    return message


# -- the server -----------------------------------------------------------------------------------


def serve() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        ended = run(Life(**json.loads(line)))
        print(json.dumps(asdict(ended)), flush=True)


def run(life: Life) -> Ended:
    """Fork a child, kill it when it is time, and gather what it said."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 1
        try:
            live(life, writer)
            code = 0
        except BaseException as error:
            os.write(writer, f"E {type(error).__name__}: {error}\n".encode()[:4000])
        os._exit(code)
    os.close(writer)
    deadline = time.monotonic() + (life.kill_after_ms / 1000 if life.kill_after_ms else 60)
    text = b""
    while True:
        left = max(deadline - time.monotonic(), 0)
        if not select.select([reader], [], [], left)[0]:
            os.kill(child, signal.SIGKILL)
            deadline += 60
            continue
        part = os.read(reader, 1 << 16)
        if not part:
            break
        text += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return _ended(os.WIFSIGNALED(status), text.decode())


def _ended(killed: bool, text: str) -> Ended:
    ended = Ended(killed, "", "", [], {}, 0, False)
    before_flush = 0
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "S":
            ended.sent.append(int(rest))
        elif kind == "A":
            serial, *place = map(int, rest.split())
            ended.acknowledged[serial] = place
        elif kind == "G":
            before_flush = len(ended.acknowledged)
        elif kind == "F":
            ended.flushed = before_flush
        elif kind == "X":
            ended.expired = True
        elif kind == "O":
            ended.last_operation = rest
        elif kind == "E":
            ended.error = rest
    return ended


class Server:
    """The server as the tests see it."""

    def __init__(self) -> None:
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.world.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
        )

    def run(self, life: Life) -> Ended:
        """Let a child live; how it ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(life)) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        answer["acknowledged"] = {int(n): place for n, place in answer["acknowledged"].items()}
        return Ended(**answer)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


if __name__ == "__main__":
    serve()
