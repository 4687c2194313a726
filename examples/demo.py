"""Firetrail in a minute: a store, a crash, a broker with a stock client, and Spark jobs.

Run it with ``make demo``, or ``demo.py [DIR [MESSAGES]]``. The stores and files stay for you to try
things on: in ``build/demo``, or in the empty folder that is given as an argument.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shop import write_day

from firetrail import FlushMode, Message, MissingExtraError, Store, StoreConfig
from firetrail.broker import BackgroundBroker
from firetrail.cli import run_command, version_line

DEFAULT = Path(__file__).parent.parent / "build" / "demo"
CLIENTS = Path(__file__).parent / "clients"
STOCK_CLIENT = Path(sys.prefix) / "stock-client"
"""Where ``make demo`` installs RocketMQ's C++ client for Python."""
WRITER = "--write-until-killed"
BUSIEST = (
    "select topic, tags, count(*) as messages, round(avg(size)) as bytes from messages "
    "where topic not like '%RETRY%' group by topic, tags order by messages desc limit 5"
)
T = TypeVar("T")
ORDERS = [
    ("o-0", "created"),
    ("o-1", "created"),
    ("o-0", "paid"),
    ("o-2", "created"),
    ("o-1", "paid"),
    ("o-0", "shipped"),
]


def main() -> None:
    """Run all parts of the demo."""
    if sys.argv[1:2] == [WRITER]:
        write_until_killed(Path(sys.argv[2]))
    folder = choose_folder(sys.argv[1:2])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300_000
    path = folder / "store"
    started = time.perf_counter()
    print(version_line())
    with Store.open(path) as store:
        message_id = write(store)
        write_many(store)
        read(store)
        follow(store)
        find(store, message_id)
    print_time("writing, reading and finding", started)
    timed("crash and recovery", lambda: crash_and_recover(path))
    timed("the commands", lambda: look_inside(path))
    timed("broker and client", serve)
    timed("all Spark jobs", lambda: pipeline(folder, count))
    print_time("the whole demo", started)
    heading("To try next:")
    print(f"  {folder / 'report.html'}    open it in a browser")
    print(f"  .venv/bin/firetrail dump {path} --topic orders --json")
    print("  docs/guide/embedding.md    how to use the store in a program of your own")
    print("  docs/guide/spark.md        how to use the pipeline")


def choose_folder(arguments: list[str]) -> Path:
    """Return the folder of the demo; only the default one is emptied first."""
    if arguments:
        path = Path(arguments[0])
        if path.exists() and any(path.iterdir()):
            sys.exit(f"{path} is not empty: name a new folder")
        return path
    shutil.rmtree(DEFAULT, ignore_errors=True)
    return DEFAULT.relative_to(Path.cwd()) if DEFAULT.is_relative_to(Path.cwd()) else DEFAULT


def heading(text: str) -> None:
    """Begin a part of the output."""
    print(f"\n\N{BLACK RIGHT-POINTING TRIANGLE} {text}", flush=True)


# -- in a program --------------------------------------------------------------------------------


def write(store: Store) -> str:
    """Put single messages, a batch and a delayed message; return the id of one of them."""
    heading("Write: two topics, tags, keys; then a batch, and a message with a delay")
    for order, status in ORDERS:
        body = f'{{"order": "{order}", "status": "{status}"}}'.encode()
        queue_id = int(order[-1])  # messages of an order go to one queue, which keeps their order
        result = store.put(Message("orders", body, tags=status, keys=[order], queue_id=queue_id))
        where = f"orders/{result.queue_id} #{result.queue_offset}"
        print(f"  {where}  {order} {status:8} id {result.message_id}")
    batch = store.put_batch([Message("clicks", b"click %d" % n, tags="web") for n in range(5)])
    print(f"  clicks/0 #{batch.queue_offset}  {batch.messages} messages in one piece")
    delayed = store.put(Message("orders", b"remind me", delay_level=3))
    print(f"  delay level 3 (10 s): waits in SCHEDULE_TOPIC_XXXX/{delayed.queue_id} for a broker")
    store.put(Message("news", b"headline 0"))
    assert result.message_id is not None
    return result.message_id


def write_many(store: Store, count: int = 100_000) -> None:
    """Show roughly how fast the store is; ``make bench`` measures it properly."""
    body = bytes(256)
    started = time.perf_counter()
    for n in range(count):
        store.put(Message("load", body, tags="t", keys=[f"k-{n}"], queue_id=n % 4))
    written = time.perf_counter() - started
    store.wait_dispatched()
    total = time.perf_counter() - started
    print(f"  {count:,} messages of 256 bytes: put in {written:.2f} s, indexed after {total:.2f} s")


def read(store: Store) -> None:
    """Read a queue from its beginning, completely and by tag."""
    heading("Read a queue, in order")
    for message in store.read("orders", queue_id=0):
        print(f"  orders/0 #{message.queue_offset}  {message.body.decode()}")
    paid = [
        message.keys[0]
        for queue_id in store.queues("orders")
        for message in store.read("orders", queue_id, tags="paid")
    ]
    print(f"  with the tag 'paid', in all queues: {', '.join(paid)}")
    started = time.perf_counter()
    count = offset = 0
    while (result := store.get("load", 0, offset)).count:
        count, offset = count + result.count, result.next_offset
    seconds = time.perf_counter() - started
    print(f"  load/0: {count:,} messages as slices of the file, undecoded, in {seconds:.3f} s")


def follow(store: Store) -> None:
    """Read messages of another thread as they arrive."""
    heading("Follow a queue while another thread writes to it")

    def produce() -> None:
        for n in range(1, 5):
            time.sleep(0.1)
            store.put(Message("news", f"headline {n}".encode()))

    producer = threading.Thread(target=produce)
    producer.start()
    for message in store.follow("news", offset=store.max_offset("news"), timeout=0.5):
        late = time.time_ns() // 1_000_000 - message.store_time
        print(
            f"  news/0 #{message.queue_offset}  {message.body.decode()}  ({late} ms after its put)"
        )
    producer.join()


def find(store: Store, message_id: str) -> None:
    """Find messages by key, by message id and by time."""
    heading("Find messages without reading the log")
    history = store.query("orders", "o-0")
    print(f"  key o-0, newest first: {', '.join(str(message.tags) for message in history)}")
    message = store.by_id(message_id)
    assert message is not None
    print(f"  id {message_id}: {message.body.decode()}")
    moment = next(store.read("news", offset=2)).store_time
    print(f"  stored at {moment} ms or later: news/0 #{store.offset_at('news', 0, moment)} and on")


# -- a crash -------------------------------------------------------------------------------------


def write_until_killed(path: Path) -> None:
    """Put messages in another process, and print the number of each once it is on disk."""
    store = Store.open(path, StoreConfig(flush=FlushMode.SYNC))
    for number in range(10**9):
        store.put(Message("ledger", b"entry %d" % number, keys=[f"e-{number}"]))
        print(number, flush=True)


def crash_and_recover(path: Path) -> None:
    """Kill a writing process, open its store, and count the messages."""
    heading("Kill a writing process (kill -9), then open its store")
    acknowledged = run_and_kill(path)
    started = time.perf_counter()
    with Store.open(path) as store:
        found = store.recovery
        print(f"  opened again, and recovered, in {time.perf_counter() - started:.3f} s:")
        print(f"    scanned {found.messages_scanned:,} messages from offset {found.scanned_from:,}")
        print(f"    log ends at {found.end:,}, {found.bytes_truncated} bytes of a torn tail zeroed")
        there = store.max_offset("ledger")
        last = store.query("ledger", f"e-{acknowledged - 1}")[0].body.decode()
    print(f"  {there:,} messages were found, and the last one acknowledged is {last!r}")
    if there < acknowledged:
        sys.exit("an acknowledged message is lost: this is a bug, please report it")


def run_and_kill(path: Path) -> int:
    """Let another process write for a moment; return how many messages were acknowledged."""
    acknowledged = 0
    with subprocess.Popen(
        [sys.executable, __file__, WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged += line.endswith("\n")
            if acknowledged == 1:  # the process is writing
                threading.Timer(0.5, writer.kill).start()
    print(f"  killed by signal {-writer.returncode}, {acknowledged:,} messages were acknowledged")
    return acknowledged


# -- from the command line -----------------------------------------------------------------------


def look_inside(path: Path) -> None:
    """Run commands on the same store."""
    heading("Look inside from the command line (stores of the Java broker as well)")
    firetrail("info", path)
    firetrail("dump", path, "--limit", "3")
    firetrail("query", path, "--topic", "orders", "--key", "o-0")
    firetrail("fsck", path)


def firetrail(command: str, path: Path, *options: str) -> None:
    """Print a command and its output."""
    print(f"\n  $ firetrail {command} {path} {' '.join(options)}".rstrip())
    done = subprocess.run(
        [sys.executable, "-m", "firetrail", command, str(path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in done.stdout.splitlines():
        print(f"  {line}".rstrip())
    if done.returncode:
        sys.exit(f"firetrail {command} ended with {done.returncode}")


# -- as a broker ---------------------------------------------------------------------------------


def serve() -> None:
    """Start a broker, and run a client against it, RocketMQ's own if it is installed."""
    with BackgroundBroker() as broker:
        if STOCK_CLIENT.is_dir():
            heading("A broker: RocketMQ's own C++ client works with it unchanged")
            program = "hello_cpp.py"
        else:
            heading("A broker and Firetrail's client (make demo installs a stock one)")
            program = "hello_firetrail.py"
        print(f"  name server {broker.namesrv}, broker {broker.address}")
        print(f"  $ python examples/clients/{program} {broker.namesrv}", flush=True)
        done = subprocess.run(
            [sys.executable, CLIENTS / program, broker.namesrv],
            env=os.environ | ({"PYTHONPATH": str(STOCK_CLIENT)} if STOCK_CLIENT.is_dir() else {}),
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        for line in done.stdout.splitlines():
            print(f"  {line}")
        if done.returncode:
            sys.exit(f"{program} ended with {done.returncode}")


# -- with Spark ----------------------------------------------------------------------------------


def pipeline(folder: Path, count: int) -> None:
    """Run the jobs of ``firetrail pipeline`` on a larger store, in one Spark session."""
    heading(f"Spark: a day of a web shop, {count:,} messages, in a store of its own")
    try:
        from firetrail.pipeline import session
    except MissingExtraError as error:
        print(f"  left out: {error}")
        return
    shop = folder / "shop"
    timed("writing it", lambda: write_day(shop, count))
    spark = timed("starting Spark on all cores of this machine", session)
    try:
        job("rebuild", shop, "--into", folder / "rebuilt")
        job("audit", shop)
        job("archive", shop, "--to", folder / "lake")
        job("sql", shop, BUSIEST)
        job("report", shop, "--out", folder / "report.html")
    finally:
        spark.stop()


def timed(what: str, action: Callable[[], T]) -> T:
    """Run an action and print how long it took."""
    started = time.perf_counter()
    result = action()
    print_time(what, started)
    return result


def print_time(what: str, started: float) -> None:
    """Print how long something took that began at ``started``."""
    print(f"  ({what} took {time.perf_counter() - started:.1f} s)", flush=True)


def job(name: str, *arguments: object) -> None:
    """Print a job's command, run it in the active Spark session, and print its output."""
    words = [str(argument) for argument in arguments]
    shown = (f'"{word}"' if " " in word else word for word in words)
    print(f"\n  $ firetrail pipeline {name} {' '.join(shown)}", flush=True)
    printed = io.StringIO()
    started = time.perf_counter()
    with contextlib.redirect_stdout(printed):
        code = run_command(["pipeline", name, *words])
    for line in printed.getvalue().splitlines():
        print(f"  {line}".rstrip())
    print_time(name, started)
    if code:
        sys.exit(f"firetrail pipeline {name} ended with {code}")


if __name__ == "__main__":
    main()
