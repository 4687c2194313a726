"""The stores that the tests start from: written by Java and by Firetrail, in every way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from interop import ours
from interop.history import History
from interop.messages import STORE_V4, STORE_V6_HOST, long_retry, mixed, specials, stored_by
from interop.peer import FEW, SMALL, Java, Json, Sizes

TINY = Sizes(log=1024, queue=100, slots=7, entries=150)


@dataclass(frozen=True)
class JavaCase:
    """A store as Java writes it."""

    name: str
    line: str
    killed: bool = False
    options: tuple[str, ...] = ()
    sizes: Sizes = SMALL

    @property
    def crc(self) -> bool:
        """Whether every record has a checksum."""
        return "--prop-crc" in self.options

    @property
    def extra(self) -> list[Json]:
        """Records that only this line understands."""
        return long_retry() if self.line == "v5" else []


JAVA_CASES = [
    JavaCase("v4-clean", "v4", options=("--flush", "sync")),
    JavaCase("v4-killed", "v4", killed=True, sizes=TINY),
    JavaCase("v4-pool", "v4", options=("--pool",)),
    JavaCase("v5-clean", "v5", sizes=FEW),
    JavaCase("v5-killed", "v5", killed=True, options=("--flush", "sync"), sizes=FEW),
    JavaCase("v5-propcrc", "v5", options=("--prop-crc",), sizes=FEW),
]


@dataclass(frozen=True)
class JavaStore:
    """A store that Java has written, and what it said about it before it stopped."""

    case: JavaCase
    root: Path
    history: History
    log: list[Json]
    queues: list[Json]


def written_by_java(case: JavaCase, root: Path) -> JavaStore:
    """Write a store with Java: every record variant, and several files of every kind."""
    lines = mixed(1, 180, specials() + case.extra)
    results, log, queues = Java(case.line).session(
        root,
        lines,
        "read --log",
        "read",
        sizes=case.sizes,
        options=case.options,
        kill=case.killed,
    )
    history = History()
    history.add(lines, results, case.line, case.crc)
    return JavaStore(case, root, history, log, queues)


@dataclass(frozen=True)
class OurCase:
    """A store as Firetrail writes it, and the Java stores that it is handed to."""

    flush: str
    killed: bool
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """For the tests' names."""
        return f"{self.flush}-{'killed' if self.killed else 'closed'}"


OUR_CASES = [
    OurCase("async", False, ("v4", "v5")),
    OurCase("async", True, ("v4", "v5")),
    OurCase("sync", False, ("v5",)),
    OurCase("sync", True, ("v4",)),
    OurCase("pool", False, ("v4",)),
    OurCase("pool", True, ("v5",)),
]


@dataclass(frozen=True)
class OurStore:
    """A store that Firetrail has written."""

    case: OurCase
    root: Path
    history: History


def written_by_us(case: OurCase, root: Path) -> OurStore:
    """Write the same with Firetrail, in two sessions, because it has one address in each."""
    history = History()
    for seed, host in ((1, STORE_V6_HOST), (2, STORE_V4)):
        lines = stored_by(host, mixed(seed, 80, specials()))
        kill = case.killed and host == STORE_V4
        results = ours.write(root, lines, "--flush", case.flush, sizes=FEW, kill=kill)
        history.add(lines, results, "firetrail")
    return OurStore(case, root, history)
