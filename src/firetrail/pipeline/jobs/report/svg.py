"""Elements of charts as SVG text: a plotting area with axes, bars, lines and tooltips.

Colours are classes of the page's style sheet (``t0``, ``t1``, … for topics), so that one drawing
works on the light and the dark page. All text from a store passes through :func:`escape`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10

from firetrail.text import human_size

_GLYPH_WIDTH = 6.2  # average width of a character of the axis labels
_TIME_STEPS_MS = [
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000 * n for n in (1, 2, 5, 10, 15, 30)),
    *(60_000 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3_600_000 * n for n in (1, 2, 3, 6, 12)),
    *(86_400_000 * n for n in (1, 2, 7, 14, 28, 56, 91, 182, 364)),
]


def number(value: float) -> str:
    """Format a number for labels with about three digits: ``1234567`` as ``1.23 M``."""
    for limit, divisor, unit in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / divisor:.3g} {unit}"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.2g}"


def size(value: float) -> str:
    """Format a number of bytes for labels."""
    return human_size(int(value)).replace(".0 ", " ")


def duration(ms: float) -> str:
    """Format milliseconds for labels: ``90000`` as ``1.5 min``."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if abs(ms) >= unit:
            return f"{ms / unit:.3g} {name}"
    return f"{ms:.3g} ms"


def moment(ms: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a time in UTC; a time outside Python's calendar is shown as a number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{ms:.0f} ms"


def nice_ticks(top: float, count: int = 4, base: int = 10) -> list[float]:
    """Return round values from 0 to the first one that is at least ``top``."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / count
    if base == 2:
        step = 2.0 ** ceil(log10(rough) / log10(2))
    else:
        power = 10.0 ** floor(log10(rough))
        step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough)
    return [step * n for n in range(ceil(top / step) + 1)]


def time_ticks(start: float, end: float, width: float) -> list[tuple[float, str]]:
    """Return round times of a range with their labels, as many as fit."""
    most = max(width / 110, 2)
    longest = _TIME_STEPS_MS[-1] * ceil((end - start) / most / _TIME_STEPS_MS[-1])
    step = next((s for s in _TIME_STEPS_MS if (end - start) / s <= most), longest)
    if step >= 86_400_000:
        form = "%d %b" if end - start < 300 * 86_400_000 else "%b %Y"
    elif step >= 60_000:
        form = "%H:%M"
    else:
        form = "%H:%M:%S"
    ticks: list[tuple[float, str]] = []
    day = ""
    at = ceil(start / step) * step
    while at <= end:
        label = f"{moment(at, form)}{f'.{at % 1000:03.0f}' if step < 1000 else ''}"
        if step < 86_400_000 and moment(at, "%d %b") != day:
            day = moment(at, "%d %b")
            label = f"{day} {label}"
        ticks.append((at, label))
        at += step
    return ticks


def tip(head: str, lines: Iterable[tuple[str, str, str]] = ()) -> str:
    """Return the tooltip attribute: a title, then lines of (colour class, name, value)."""
    parts = [head, *("\t".join(line) for line in lines)]
    return f' data-tip="{escape(chr(10).join(parts))}"'


@dataclass
class Plot:
    """A drawing with margins around its plotting area."""

    width: float
    height: float
    left: float = 52
    right: float = 12
    top: float = 10
    bottom: float = 26
    parts: list[str] = field(default_factory=list)

    @property
    def x1(self) -> float:
        """Right edge of the area."""
        return self.width - self.right

    @property
    def y1(self) -> float:
        """Bottom edge of the area."""
        return self.height - self.bottom

    @property
    def inner(self) -> tuple[float, float]:
        """Width and height of the area."""
        return self.x1 - self.left, self.y1 - self.top

    def add(self, part: str) -> None:
        """Add an SVG element."""
        self.parts.append(part)

    def text(self, x: float, y: float, text: str, style: str = "tick", anchor: str = "") -> None:
        """Add a label; ``anchor`` is ``middle`` or ``end``."""
        at = f' text-anchor="{anchor}"' if anchor else ""
        self.add(f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{at}>{escape(text)}</text>')

    def y_axis(self, ticks: Sequence[float], labels: Sequence[str]) -> None:
        """Add horizontal lines at the ticks; the last tick is the upper edge."""
        for value, label in zip(ticks, labels, strict=True):
            y = self.y1 - value / ticks[-1] * self.inner[1]
            style = "grid" if value else "axis"
            self.add(f'<path class="{style}" d="M{self.left:.1f} {y:.1f}H{self.x1:.1f}"/>')
            self.text(self.left - 8, y + 3.5, label, anchor="end")

    def x_labels(self, labels: Iterable[tuple[float, str]]) -> None:
        """Add labels below the area, centred at their x; labels that would overlap are skipped."""
        taken = float("-inf")
        for x, label in labels:
            half = len(label) * _GLYPH_WIDTH / 2
            at = min(max(x, half), self.width - half)
            if at - half < taken:
                continue
            taken = at + half + 10
            self.text(at, self.y1 + 17, label, anchor="middle")

    def svg(self, label: str) -> str:
        """Return the drawing as an SVG element."""
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-label="{escape(label)}">{"".join(self.parts)}</svg>'
        )


def box(x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle as part of a path."""
    return f"M{x:.2f} {y:.2f}h{width:.2f}v{height:.2f}h{-width:.2f}z"


def line(points: Sequence[tuple[float, float]]) -> str:
    """Return a line through points as a path."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
