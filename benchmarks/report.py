"""The table on the terminal, and the one on the page ``docs/performance.md``."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.bench import Scale
from benchmarks.contestants import ROOT
from benchmarks.figures import Line
from firetrail.kernels import COMPILED

PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- begin {part}: written by python -m benchmarks --write -->"
END = "<!-- end -->"
HEADINGS = ("measurement", "Firetrail", "compared with", "theirs", "ratio", "target", "")
PAGE_HEADINGS = ("", "figure", "ratio", "target")
COLUMNS = 100
"""The width of a page."""


def table(lines: Iterable[Line]) -> str:
    """Return a table with padded columns, for the terminal."""
    rows = [HEADINGS, *_rows(lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def page_table(lines: Iterable[Line]) -> str:
    """Return a Markdown table whose rows fit on a page.

    A measurement has a row of its own, followed by one row for each baseline.
    """
    rows = [PAGE_HEADINGS, ("---",) * len(PAGE_HEADINGS)]
    for measurement, ours, baseline, theirs, ratio, target, met in _rows(lines):
        compared = baseline != "-"
        wanted = f"{target} {met}".strip()
        if measurement:
            rows.append((f"**{measurement}**", ours, "", "" if compared else wanted))
        if compared:
            rows.append((baseline, theirs, ratio, wanted))
    return "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in row)}|" for row in rows)


def _rows(lines: Iterable[Line]) -> Iterable[tuple[str, ...]]:
    previous = ""
    for line in lines:
        repeated = line.measurement == previous
        previous = line.measurement
        yield (
            "" if repeated else line.measurement,
            "" if repeated else str(line.ours),
            line.baseline or "-",
            str(line.theirs or "-"),
            _ratio(line),
            _target(line),
            {None: "", True: "✓", False: "missed"}[line.met],
        )


def _ratio(line: Line) -> str:
    if line.ratio is None or line.median_ratio is None:
        return "-"
    if len(line.ours.values) == 1:
        return f"{line.ratio:.2f}"
    return f"{line.ratio:.2f} ({line.median_ratio:.2f})"


def _target(line: Line) -> str:
    if line.limit is not None:
        sign = "≥" if line.ours.unit.more_is_better else "≤"
        return f"{sign} {line.ours.unit.show(line.limit)}"
    return "" if line.wanted is None else f"≥ {line.wanted:.3g}"


def machine() -> str:
    """Describe the machine and the versions, which the figures depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    kernels = "compiled" if COMPILED else "not compiled"
    return ", ".join(
        (
            f"{os.cpu_count()} CPUs ({_processor()})",
            f"{memory:.0f} GiB of memory",
            f"{platform.system()} {platform.release().split('-')[0]}",
            f"Python {platform.python_version()} (kernels {kernels})",
            _java(),
        )
    )


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        return "no Java"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[0]


def _processor() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def generated_part(part: str, lines: Sequence[Line], scale: Scale, repeat: int) -> str:
    """Return a part of the page, with the marks around it."""
    repetitions = "1 repetition" if repeat == 1 else f"{repeat} repetitions"
    return "\n".join(
        (
            BEGIN.format(part=part),
            textwrap.fill(f"Measured on {machine()}.", COLUMNS, break_on_hyphens=False),
            "",
            textwrap.fill(f"{scale.amounts[part]}; {repetitions}.", COLUMNS),
            "",
            page_table(lines),
            END,
        )
    )


def write_page(
    part: str, lines: Sequence[Line], scale: Scale, repeat: int, page: Path = PAGE
) -> None:
    """Replace a generated part of the page."""
    text = page.read_text(encoding="utf-8")
    mark = BEGIN.format(part=part)
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: the lines {mark!r} and {END!r} are missing; put them back")
    page.write_text(before + generated_part(part, lines, scale, repeat) + after, encoding="utf-8")
