"""Firetrail in a process of its own, which can be killed.

:func:`write` lets a child process put messages and then close the store or kill itself;
:func:`kill_while_writing` kills one in the middle of its work. The child (:func:`main`) answers as
the Java peer's ``write`` does: one line of JSON per put, printed once it is acknowledged.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from interop.peer import SMALL, Json, Sizes

from firetrail import Batch, FlushMode, Message, PutResult, Store
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.properties import encode_properties
from firetrail.format.values.hosts import parse_host
from firetrail.system import Clock, System

_ROOT = Path(__file__).parent.parent
_numbers = itertools.count()


def write(
    store: Path,
    lines: Sequence[Json],
    *options: str,
    sizes: Sizes = SMALL,
    kill: bool = False,
) -> list[Json]:
    """Put the lines, then close the store or, with everything dispatched, die; the results."""
    command = _command(store, lines, sizes, *options, *(["--kill"] if kill else []))
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=_ROOT, timeout=60)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
    results = [json.loads(text) for text in done.stdout.splitlines()]
    assert len(results) == len(lines)
    return results


def kill_while_writing(
    store: Path, lines: Sequence[Json], acknowledged: int, *options: str, sizes: Sizes = SMALL
) -> list[Json]:
    """Put the lines repeatedly; kill the process some time after this number of results."""
    command = _command(store, lines, sizes, *options, "--endless")
    results = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", cwd=_ROOT) as child:
        assert child.stdout is not None
        for text in child.stdout:
            results.append(json.loads(text))
            if len(results) == acknowledged:
                child.kill()
    assert child.returncode == -signal.SIGKILL
    return results


def _command(store: Path, lines: Sequence[Json], sizes: Sizes, *options: str) -> list[str]:
    hosts = {line["store_host"] for line in lines}
    assert len(hosts) == 1, "a store of Firetrail has one address"
    spec = store.parent / f"{store.name}.ours.{next(_numbers)}"
    spec.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return [
        sys.executable,
        "-m",
        "interop.ours",
        str(store),
        "--spec",
        str(spec),
        "--sizes",
        *map(str, (sizes.log, sizes.queue, sizes.slots, sizes.entries)),
        "--store-host",
        hosts.pop(),
        *options,
    ]


class ShiftedClock(Clock):
    """A wall clock that is wrong by some time."""

    def __init__(self, shift_ms: int) -> None:
        self._shift_ms = shift_ms

    def time_ns(self) -> int:
        """Nanoseconds since 1970, and the shift."""
        return time.time_ns() + self._shift_ms * 1_000_000


def put(store: Store, line: Json) -> PutResult:
    """Store what a line of a spec describes."""
    time.sleep(line.get("pause_ms", 0) / 1000)
    common = {
        "queue_id": line.get("queue_id", 0),
        "sys_flag": line.get("sys_flag", 0),
        "born_time": line.get("born_time"),
        "born_host": parse_host(line["born_host"]),
        "reconsume_times": line.get("reconsume_times", 0),
    }
    if "batch" not in line:
        return store.put(
            Message(
                line["topic"],
                base64.b64decode(line["body"]),
                properties=line.get("properties"),
                flag=line.get("flag", 0),
                prepared_offset=line.get("prepared_offset", 0),
                **common,
            )
        )
    items = (
        BatchItem(
            item.get("flag", 0),
            base64.b64decode(item["body"]),
            encode_properties(item.get("properties", {})),
        )
        for item in line["batch"]
    )
    shared = encode_properties(line.get("properties", {}))
    return store.put_batch(
        Batch(line["topic"], encode_batch(items), shared_properties=shared, **common)
    )


def answer(result: PutResult) -> Json:
    """Return a result in the form in which the Java peer prints it."""
    return {
        "status": result.status.value,
        "msg_id": result.message_id,
        "queue_offset": result.queue_offset,
        "physical_offset": result.physical_offset,
        "size": result.size,
        "store_time": result.store_time,
        "messages": result.messages,
    }


def main() -> None:
    """Run the child: put messages, and end as requested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs=4, required=True)
    parser.add_argument("--store-host", required=True)
    parser.add_argument("--flush", choices=("sync", "async", "pool"), default="async")
    parser.add_argument("--prop-crc", action="store_true")
    parser.add_argument("--clock-shift", type=int, default=0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--endless", action="store_true")
    args = parser.parse_args()
    config = Sizes(*args.sizes).config(
        flush=FlushMode.SYNC if args.flush == "sync" else FlushMode.ASYNC,
        write_buffer_pool=args.flush == "pool",
        store_host=parse_host(args.store_host),
        property_crc=args.prop_crc,
    )
    system = System(clock=ShiftedClock(args.clock_shift))
    lines = [json.loads(text) for text in args.spec.read_text(encoding="utf-8").splitlines()]
    with Store.open(args.store, config, system=system) as store:
        for line in itertools.cycle(lines) if args.endless else lines:
            print(json.dumps(answer(put(store, line))), flush=True)
        store.wait_dispatched()
        if args.kill:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
