"""A store goes there and back many times, and ends with the same messages on both sides."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from interop import commands, ours
from interop.history import History
from interop.messages import STORE_V4, STORE_V6_HOST, mixed, specials, stored_by
from interop.peer import FEW, Java
from interop.views import java_queues

from firetrail import Store

STEPS = 8


class Step(NamedTuple):
    """The side that owns the store, and how it stops."""

    side: str
    options: tuple[str, ...]
    killed: bool

    @property
    def is_java(self) -> bool:
        """Whether it is one of the Java stores."""
        return self.side != "firetrail"


def plan(seed: int) -> list[Step]:
    """Firetrail and the two Java stores take turns, no one twice in a row."""
    rng = random.Random(seed)
    steps: list[Step] = []
    while len(steps) < STEPS:
        side = rng.choice(("firetrail", "firetrail", "v4", "v5"))
        if steps and steps[-1].side == side:
            continue
        options = rng.choice((("--flush", "sync"), ("--flush", "async"), ("--pool",)))
        if side == "firetrail" and options == ("--pool",):
            options = ("--flush", "pool")
        steps.append(Step(side, options, rng.random() < 0.5))
    return steps


class Relay:
    """The store on its way, and all that must be in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "store"
        self.folder = folder
        self.history = History()
        self.keys = True
        self.last: Step | None = None

    def take(self, number: int, step: Step) -> None:
        """Let one side verify what there is and add to it."""
        before = self.last
        if step.is_java and before is not None and before.killed:
            self.history.repeats = True
            # Java deletes the index file that another Java was filling, and with it keys that
            # it does not find again.
            self.keys = self.keys and not before.is_java
        if before is not None:
            self.check_copy(f"before-{number}")
        host = STORE_V6_HOST if number % 2 else STORE_V4
        lines = mixed(number + 1, 25, specials())
        if step.is_java:
            log, queues, results, after = Java(step.side).session(
                self.root,
                "read --log",
                "read",
                lines,
                "read --log",
                sizes=FEW,
                options=step.options,
                kill=step.killed,
            )
            assert log == self.history.records
            assert java_queues(queues).keys() == self.history.queues().keys()
            self.history.add(lines, results, step.side)
            assert after == self.history.records
        else:
            lines = stored_by(host, lines)
            results = ours.write(self.root, lines, *step.options, sizes=FEW, kill=step.killed)
            self.history.add(lines, results, "firetrail")
        self.last = step

    def check_copy(self, name: str) -> None:
        """Check that Firetrail finds everything in a copy; the store itself stays unchanged."""
        if self.keys:  # where Java has lost some, fsck misses them
            commands.check_clean(self.root, len(self.history.records))
        copy = shutil.copytree(self.root, self.folder / name)
        with Store.open(copy) as store:
            assert self.last is not None and store.recovery.clean is not self.last.killed
            assert store.recovery.bytes_truncated == 0
            self.history.check_firetrail(store, keys=self.keys)

    def check_java_copy(self, java: Java) -> None:
        """Check that a Java store finds everything, too."""
        assert self.last is not None
        copy = shutil.copytree(self.root, self.folder / f"end-{java.line}")
        keys = self.keys and not (self.last.killed and self.last.is_java)
        history = self.history.copy()
        history.repeats = history.repeats or self.last.killed
        history.date_queue_files(copy, FEW)
        questions = history.questions(java.line, keys=keys)
        answers = java.session(copy, *questions, sizes=FEW, kill=True)
        history.check_java(answers, java.line, FEW, keys=keys)


@pytest.mark.parametrize("seed", [4, 5])
def test_there_and_back_again(seed: int, tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    steps = plan(seed)
    for number, step in enumerate(steps):
        try:
            relay.take(number, step)
        except AssertionError as error:
            error.add_note(f"seed {seed}, step {number} of {steps}")
            raise
    relay.check_copy("end")
    for line in ("v4", "v5"):
        relay.check_java_copy(Java(line))
