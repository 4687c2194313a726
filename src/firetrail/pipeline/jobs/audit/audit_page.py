"""The result of an audit as one HTML page, styled like the report."""

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from firetrail.pipeline.jobs.report.blocks import fine, page, plot, section, tile
from firetrail.store.inspect.fsck.report import CheckReport, by_kind
from firetrail.store.problems import WARNINGS, Problem
from firetrail.system import SYSTEM
from firetrail.text import counted, human_size, human_time

ROWS_MAX = 200
"""Findings listed per kind."""
_WIDTH, _HEIGHT = 1100, 46


def render(report: CheckReport, created: datetime) -> str:
    """Return the page; ``created`` is the time shown in its footer."""
    name = report.store.rstrip("/").rsplit("/", 1)[-1]
    return page(
        brand="Firetrail audit",
        head=name,
        subtitle="Every record, unit and index entry, compared with each other.",
        tiles=_tiles(report),
        sections=_sections(report),
        store=report.store,
        created=created,
        note="Offsets are bytes; those in the log are physical offsets.",
    )


def write(report: CheckReport, out: Path) -> None:
    """Write the page to a file."""
    now = datetime.fromtimestamp(SYSTEM.clock.now_ms() / 1000, UTC)
    out.write_text(render(report, now), encoding="utf-8")


def _tiles(report: CheckReport) -> Iterator[str]:
    problems = len(report.problems) + report.problems_omitted
    kinds = counted(len(by_kind(report.problems)), "kind")
    yield tile(
        "Problems",
        f"{problems:,}" if problems else "none",
        f"of {kinds}" if problems else "the store is sound",
        "bad" if problems else "good",
    )
    warnings = len(report.warnings)
    yield tile(
        "Warnings",
        f"{warnings:,}" if warnings else "none",
        "no message is affected" if warnings else "nothing unusual",
        "warn" if warnings else "good",
    )
    yield tile("Messages", f"{report.messages:,}", "records with correct checksums")
    amount, unit = human_size(report.end_offset - report.begin_offset).split()
    offsets = f"offsets {report.begin_offset:,} to {report.end_offset:,}"
    yield tile("Log", amount, offsets, unit=unit)
    yield tile("Units", f"{report.units:,}", f"of {counted(report.queues, 'queue')}")
    files = counted(report.index_files, "index file")
    yield tile("Index entries", f"{report.index_entries:,}", f"in {files}")
    day, _, time = human_time(report.last_store_time).partition(" ")
    yield tile("Last stored", time.removesuffix("Z") or "never", f"{day}, UTC" if time else "")
    yield tile("Store", report.state, counted(report.log_files, "log file"))


def _sections(report: CheckReport) -> Iterator[str]:
    found = [*report.problems, *report.warnings]
    if not found:
        yield section(
            "Findings",
            "Checked: records, queues, index, store times and checkpoint.",
            fine("Sound.", "Every record, unit and entry exists once and is correct."),
            wide=True,
        )
    if any(problem.physical_offset is not None for problem in found):
        note = "Findings by the position of the affected record in the log."
        yield section("Where", note, plot(_strip(report, found)), wide=True)
    for kind, some in by_kind(found).items():
        severity = "warning" if some[0].kind in WARNINGS else "problem"
        note = counted(len(some), severity)
        if len(some) > ROWS_MAX:
            note += f", of which the first {ROWS_MAX} are listed"
        yield section(kind, f"{note}.", plot(_table(some[:ROWS_MAX])), wide=True)
    if report.problems_omitted:
        note = f"{report.problems_omitted:,} more findings were counted but not kept."
        yield section("More findings", note, "", wide=True)
    if report.torn_tail is not None:
        torn = report.torn_tail
        note = (
            f"The log ends in {torn.file} at {torn.offset:,}, with a record that was being written "
            f"when the broker stopped ({torn.detail})."
        )
        yield section("Torn tail", note, "", wide=True)


def _strip(report: CheckReport, found: list[Problem]) -> str:
    """Draw the log from its beginning to its end, with a mark for each finding."""
    length = max(report.end_offset - report.begin_offset, 1)
    marks: dict[int, Problem] = {}
    for problem in reversed(found):
        if problem.physical_offset is not None:
            share = (problem.physical_offset - report.begin_offset) / length
            marks[round(min(max(share, 0), 1) * (_WIDTH - 3))] = problem
    lines = "".join(
        f'<rect class="{"warn" if problem.kind in WARNINGS else "bad"} f" x="{x}" y="2" width="3" '
        f'height="24" rx="1"><title>{escape(_title(problem))}</title></rect>'
        for x, problem in sorted(marks.items())
    )
    ends = (
        f'<text x="0" y="{_HEIGHT - 4}">{report.begin_offset:,}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">{report.end_offset:,}</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Findings in the log">'
        f'<rect class="free f" y="2" width="{_WIDTH}" height="24" rx="4"/>{lines}{ends}</svg>'
    )


def _title(problem: Problem) -> str:
    return f"{problem.kind.value} at {problem.physical_offset:,}: {problem.detail}"


def _table(some: list[Problem]) -> str:
    rows = "".join(
        f'<tr><td class="nowrap"><code>{escape(problem.file)}</code></td>'
        f'<td class="n">{problem.offset:,}</td>'
        f'<td class="n">{"" if problem.physical_offset is None else f"{problem.physical_offset:,}"}'
        f"</td><td>{escape(problem.detail)}</td></tr>"
        for problem in some
    )
    return (
        '<table><thead><tr><th>file</th><th class="n">at</th><th class="n">offset in the log</th>'
        f"<th>detail</th></tr></thead><tbody>{rows}</tbody></table>"
    )
