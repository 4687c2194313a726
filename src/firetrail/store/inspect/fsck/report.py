"""The results of a check."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from firetrail.store.problems import WARNINGS, Problem, ProblemKind, advice

FINDINGS_MAX = 10_000
"""Maximum number of problems that are listed; further ones are only counted."""


class Findings:
    """Problems and warnings, collected while a check runs."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.omitted = 0

    def add(
        self, file: str, offset: int, physical_offset: int | None, kind: ProblemKind, detail: str
    ) -> None:
        """Add a problem, or a warning if its kind is one."""
        self.extend([Problem(file, offset, physical_offset, kind, detail)])

    def __bool__(self) -> bool:
        return bool(self.problems or self.warnings or self.omitted)

    def merge(self, other: Findings) -> None:
        """Add the findings of another part of the check."""
        self.extend([*other.problems, *other.warnings])
        self.omitted += other.omitted

    def extend(self, found: list[Problem]) -> None:
        """Add problems and warnings."""
        for problem in found:
            notes = self.warnings if problem.kind in WARNINGS else self.problems
            if len(notes) < FINDINGS_MAX:
                notes.append(problem)
            else:
                self.omitted += 1


def by_kind(found: list[Problem]) -> dict[str, list[Problem]]:
    """Return findings by their kind, in the order in which they were found."""
    kinds: dict[str, list[Problem]] = {}
    for problem in found:
        kinds.setdefault(problem.kind.value, []).append(problem)
    return kinds


class DamagedRanges:
    """Parts of the log that cannot be read; units and entries that point there are not faulted."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Note that the log cannot be read from ``start`` to ``end``."""
        insort(self._ranges, (start, end))

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._ranges, (offset, 1 << 63)) - 1
        return index >= 0 and self._ranges[index][0] <= offset < self._ranges[index][1]


class TornTail(NamedTuple):
    """The end of the log of a crashed store; the rest was never known to be on disk."""

    file: str
    offset: int
    physical_offset: int
    detail: str


@dataclass(slots=True)
class CheckReport:
    """The result of a check; ``ok`` considers problems, but not warnings."""

    store: str
    state: str
    owner: int | None
    problems: list[Problem] = field(default_factory=list)
    problems_omitted: int = 0
    warnings: list[Problem] = field(default_factory=list)
    messages: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    last_store_time: int = 0
    torn_tail: TornTail | None = None
    log_files: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0

    @property
    def ok(self) -> bool:
        """Whether the store has no problems."""
        return not self.problems and not self.problems_omitted

    @property
    def advice(self) -> str | None:
        """The advice for repairing the store; None if there is nothing to repair."""
        dropped = [found for found in self.warnings if found.kind is ProblemKind.RECORDS_DROPPED]
        return advice([*self.problems, *dropped], self.store)

    def as_json(self) -> dict[str, Any]:
        """Return the report as ``firetrail fsck --json`` prints it."""
        report = {"ok": self.ok} | asdict(self) | {"advice": self.advice}
        for name in ("problems", "warnings"):
            report[name] = [problem._asdict() for problem in getattr(self, name)]
        report["torn_tail"] = self.torn_tail and self.torn_tail._asdict()
        return report
