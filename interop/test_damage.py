"""The same bits flipped in stores of both sides: what each of them serves afterwards.

A topic with 30 messages, acknowledged with SYNC_FLUSH by the store that is damaged. The docs have
both columns (``docs/durability.md``); a release of RocketMQ that does better shows here.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from interop.peer import FEW, Java, Json

from firetrail import FiretrailError, FlushMode, Message
from firetrail.store.served import ServedStore

COUNT, VICTIM = 30, 9
BODIES = [b"message %d " % number + b"." * 100 for number in range(COUNT)]
LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/T/0/00000000000000000000"
UNIT_SIZE = 20
FIELDS = {"size": 3, "magic": 7, "body": 90}
"""Where in a record of the log a bit is flipped."""
UNIT_OFFSET = 7
"""The same in a unit of the queue."""


def by_java(root: Path, killed: bool) -> list[int]:
    """A store of Java's; where its messages are."""
    bodies = [base64.b64encode(body).decode() for body in BODIES]
    lines: list[Json] = [{"topic": "T", "queue_id": 0, "body": body} for body in bodies]
    options = ["--flush", "sync"]
    (results,) = Java("v5").session(root, lines, sizes=FEW, options=options, kill=killed)
    return [result["physical_offset"] for result in results]


def by_firetrail(root: Path, killed: bool) -> list[int]:
    """A store of Firetrail's; killed some time after the last message, as Java's is."""
    live = root.with_name("live")
    with ServedStore.open(live, FEW.config(flush=FlushMode.SYNC)) as store:
        places = [store.put(Message("T", body)).physical_offset for body in BODIES]
        if killed:
            store.wait_dispatched()
            store.settle()
            shutil.copytree(live, root, ignore=shutil.ignore_patterns("*.tmp"))
    if not killed:
        live.rename(root)
    return places


def served_by_java(root: Path) -> str:
    (answers,) = Java("v5").session(root, "read", sizes=FEW, kill=True)
    return told([base64.b64decode(a["body"]) for a in answers if "body" in a], 0)


def served_by_firetrail(root: Path) -> str:
    found: list[bytes] = []
    reported = 0
    try:
        with ServedStore.open(root, FEW.config()) as store:
            for number in range(store.max_offset("T", 0)):
                try:
                    found += [r.body for r in store.get("T", 0, number, max_count=1).messages()]
                except FiretrailError:
                    reported += 1
    except FiretrailError:
        return "refused"
    return told(found, reported)


def told(bodies: list[bytes], reported: int) -> str:
    """How many messages are as they were put, and what became of the others."""
    good = sum(1 for body in bodies if body in BODIES)
    counts = {
        "good": good,
        "altered": len(bodies) - good,
        "reported": reported,
        "missing": COUNT - len(bodies) - reported,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def outcomes(
    folder: Path,
    killed: bool,
    write: Callable[[Path, bool], list[int]],
    served: Callable[[Path], str],
) -> dict[str, str]:
    """By what was flipped: what is served."""
    root = folder / "store"
    folder.mkdir()
    places = write(root, killed)
    flips = {name: (LOG, places[VICTIM] + at) for name, at in FIELDS.items()}
    flips["unit"] = (QUEUE, VICTIM * UNIT_SIZE + UNIT_OFFSET)
    found = {}
    for name, (path, at) in flips.items():
        copy = shutil.copytree(root, folder / name)
        content = bytearray((copy / path).read_bytes())
        content[at] ^= 1
        (copy / path).write_bytes(content)
        found[name] = served(copy)
    return found


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_bits_flip_in_both_stores(tmp_path: Path, killed: bool) -> None:
    java = outcomes(tmp_path / "java", killed, by_java, served_by_java)
    ours = outcomes(tmp_path / "firetrail", killed, by_firetrail, served_by_firetrail)
    print(java, ours)
    assert ours == dict.fromkeys((*FIELDS, "unit"), "29 good, 1 reported")
    cut = dict.fromkeys(FIELDS, "9 good, 21 missing")
    assert java == cut | {"unit": "29 good, 1 missing"}
