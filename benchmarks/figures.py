"""Figures, their units, and the lines that compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Any

Json = dict[str, Any]


class Unit(Enum):
    """The unit of a figure; it determines whether more or less is better."""

    MESSAGES = "messages/s"
    BYTES = "bytes/s"
    SECONDS = "s"
    MEMORY = "bytes"
    SHARE = "of all"

    @property
    def more_is_better(self) -> bool:
        """Whether a higher figure is better, as for rates and shares."""
        return self in (Unit.MESSAGES, Unit.BYTES, Unit.SHARE)

    def show(self, value: float) -> str:
        """Return the value with three digits and a suitable prefix."""
        scales = _SCALES[self]
        for size, name in scales:
            if value >= size:
                return f"{_digits(value / size)} {name}"
        size, name = scales[-1]
        return f"{_digits(value / size)} {name}"


_SCALES: dict[Unit, tuple[tuple[float, str], ...]] = {
    Unit.MESSAGES: ((1e6, "M/s"), (1e3, "k/s"), (1, "/s")),
    Unit.BYTES: ((1e9, "GB/s"), (1e6, "MB/s")),
    Unit.MEMORY: ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")),
    Unit.SHARE: ((0.01, "%"),),
    Unit.SECONDS: ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
}


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Samples:
    """One figure of every repetition."""

    unit: Unit
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The best value: that of the run which other processes disturbed least."""
        return max(self.values) if self.unit.more_is_better else min(self.values)

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    def __str__(self) -> str:
        best = self.unit.show(self.best)
        return best if len(self.values) == 1 else f"{best} ({self.unit.show(self.median)})"


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of Firetrail, and of what it is compared with if there is such a thing."""

    measurement: str
    ours: Samples
    baseline: str = ""
    theirs: Samples | None = None
    wanted: float | None = None
    """The ratio that the project asks for."""
    limit: float | None = None
    """The figure, in the samples' unit, that it must not be worse than."""

    @property
    def ratio(self) -> float | None:
        """The factor by which Firetrail is better, best against best."""
        return self._ratio(lambda samples: samples.best)

    @property
    def median_ratio(self) -> float | None:
        """The same, median against median."""
        return self._ratio(lambda samples: samples.median)

    def _ratio(self, of: Callable[[Samples], float]) -> float | None:
        if self.theirs is None:
            return None
        better, worse = of(self.ours), of(self.theirs)
        if not self.ours.unit.more_is_better:
            better, worse = worse, better
        return better / worse if worse else None

    @property
    def met(self) -> bool | None:
        """Whether what is asked for is reached, None if nothing is asked for."""
        if self.limit is not None:
            best = self.ours.best
            return best >= self.limit if self.ours.unit.more_is_better else best <= self.limit
        if self.wanted is None or self.ratio is None:
            return None
        return self.ratio >= self.wanted

    def __str__(self) -> str:
        shown = f"{self.measurement}: {self.ours}"
        if self.ratio is None:
            return shown
        return f"{shown}, {self.baseline} {self.theirs}, ratio {self.ratio:.2f}"

    def as_json(self) -> Json:
        """Return the figures in the form for other programs."""
        return {
            "measurement": self.measurement,
            "unit": self.ours.unit.value,
            "firetrail": list(self.ours.values),
            "baseline": self.baseline or None,
            "theirs": list(self.theirs.values) if self.theirs else None,
            "ratio_best": self.ratio,
            "ratio_median": self.median_ratio,
            "wanted_ratio": self.wanted,
            "wanted_figure": self.limit,
            "met": self.met,
        }


def samples(unit: Unit, answers: Sequence[Json], name: str, scale: float = 1) -> Samples:
    """Figure ``name`` of the answers of all repetitions."""
    return Samples(unit, tuple(answer[name] * scale for answer in answers))
