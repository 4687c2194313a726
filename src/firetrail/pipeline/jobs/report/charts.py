"""The charts of the report."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from math import log1p

from firetrail.format.names import segment_name
from firetrail.pipeline.jobs.report.figures import TOPICS_SHOWN, Figures, TimeAxis, TopicFigures
from firetrail.pipeline.jobs.report.svg import (
    Plot,
    box,
    duration,
    line,
    moment,
    nice_ticks,
    number,
    size,
    time_ticks,
    tip,
)

WIDE, HALF = 1120.0, 540.0
_OTHER = TOPICS_SHOWN
_CELL, _PITCH = 10.0, 12.5


def topic_names(figures: Figures) -> dict[int, str]:
    """Return the name of each topic class that has messages."""
    names = {number: topic.name for number, topic in enumerate(figures.shown)}
    rest = len(figures.topics) - len(figures.shown)
    if rest:
        names[_OTHER] = "1 other topic" if rest == 1 else f"{rest} other topics"
    return names


@dataclass(frozen=True, slots=True)
class BarColumns:
    """The positions of the columns of a bar chart, and the value at its upper edge."""

    numbers: range
    left: float
    wide: float
    gap: float
    top: float

    def area(self, plot: Plot, column: int) -> str:
        """Return the whole area of a column as a path."""
        x = self.left + (column - self.numbers.start) * self.wide
        return box(x, plot.top, self.wide, plot.inner[1])


def _stack(
    plot: Plot,
    columns: BarColumns,
    names: Mapping[int, str],
    values: Mapping[tuple[int, int], float],
) -> None:
    """Draw stacked bars; values are by (topic class, column)."""
    below = dict.fromkeys(columns.numbers, 0.0)
    for name in names:
        path = []
        for place, column in enumerate(columns.numbers):
            high = values[name, column] / columns.top * plot.inner[1]
            if high:
                x = columns.left + place * columns.wide + columns.gap / 2
                y = plot.y1 - below[column] - high
                path.append(box(x, y, columns.wide - columns.gap, high))
                below[column] += high
        plot.add(f'<path class="f t{name}" d="{"".join(path)}"/>')


def _hover(
    plot: Plot,
    columns: BarColumns,
    names: Mapping[int, str],
    values: Mapping[tuple[int, int], float],
    form: Callable[[float], str],
    head: Callable[[int], str],
) -> None:
    """Add the tooltip of each column: its title and total, then the part of each topic."""
    for column in columns.numbers:
        parts = {name: values[name, column] for name in names if values[name, column]}
        lines = [(f"t{name}", names[name], form(value)) for name, value in parts.items()]
        shown = tip(f"{head(column)} · {form(sum(parts.values()))}", lines)
        plot.add(f'<path class="hit" d="{columns.area(plot, column)}"{shown}/>')


def over_time(
    figures: Figures, values: Mapping[tuple[int, int], int], form: Callable[[float], str], what: str
) -> str:
    """Draw rates per second along the time axis, stacked by topic."""
    axis, names = figures.times, topic_names(figures)
    rates = Counter({key: value * 1000 / axis.width for key, value in values.items()})
    plot = Plot(WIDE, 230, left=72)
    most = max(sum(rates[name, step] for name in names) for step in range(axis.steps))
    ticks = nice_ticks(most, base=2 if form is size else 10)
    plot.y_axis(ticks, [f"{form(tick)}/s" for tick in ticks])
    _time_labels(plot, axis)
    wide = plot.inner[0] / axis.steps
    columns = BarColumns(range(axis.steps), plot.left, wide, min(1.0, wide / 6), ticks[-1])
    _stack(plot, columns, names, rates)
    _hover(plot, columns, names, rates, lambda v: f"{form(v)}/s", lambda s: step_time(axis, s))
    return plot.svg(what)


def _time_labels(plot: Plot, axis: TimeAxis) -> None:
    end = axis.time(axis.steps)
    width = plot.inner[0]
    plot.x_labels(
        (plot.left + (at - axis.start) / (end - axis.start) * width, label)
        for at, label in time_ticks(axis.start, end, width)
    )


def step_time(axis: TimeAxis, step: int) -> str:
    """Return the time at which a step begins, as text."""
    at = axis.time(step)
    return moment(at) if axis.width >= 1000 else f"{moment(at)}.{int(at) % 1000:03d}"


def sizes(figures: Figures) -> str:
    """Draw the distribution of record sizes in half octaves, stacked by topic."""
    names = topic_names(figures)
    found = [column for _, column in figures.sizes]
    numbers = range(min(found), max(found) + 1)
    plot = Plot(HALF, 300)
    ticks = nice_ticks(max(sum(figures.sizes[n, column] for n in names) for column in numbers))
    plot.y_axis(ticks, [number(tick) for tick in ticks])
    wide = min(plot.inner[0] / len(numbers), 48)
    left = plot.left + (plot.inner[0] - wide * len(numbers)) / 2
    columns = BarColumns(numbers, left, wide, 2, ticks[-1])
    values = Counter({key: float(value) for key, value in figures.sizes.items()})
    _stack(plot, columns, names, values)
    _hover(
        plot,
        columns,
        names,
        values,
        lambda messages: f"{messages:,.0f}",
        lambda column: f"{size(2 ** (column / 2))} to {size(2 ** ((column + 1) / 2))}",
    )
    plot.x_labels(
        (left + place * wide, size(2 ** (column / 2)))
        for place, column in enumerate(range(numbers.start, numbers.stop + 1))
        if column % 2 == 0
    )
    return plot.svg("Distribution of record sizes")


def latency_label(column: int) -> str:
    """Return the range of a latency class as text."""
    if column < 0:
        return "before it was born (clocks differ)"
    if column == 0:
        return "less than 1 ms"
    return f"{duration(2 ** (column - 1))} to {duration(2**column)}"


def percentile(counts: Mapping[int, int], share: float) -> float:
    """Return the latency below which ``share`` of the messages are, as a class's upper bound."""
    left = share * sum(counts.values())
    for column in sorted(counts):
        left -= counts[column]
        if left <= 0:
            return 0.0 if column < 0 else float(2**column)
    return 0.0


def latency_counts(figures: Figures) -> Counter[int]:
    """Count the messages by latency class."""
    counts: Counter[int] = Counter()
    for (_, column), messages in figures.latency.items():
        counts[column] += messages
    return counts


def latency(figures: Figures) -> str:
    """Draw a heat map of latency classes over time, with lines for two percentiles."""
    axis = figures.times
    lowest = min(0, *(column for _, column in figures.latency))
    highest = max(3, *(column for _, column in figures.latency))
    rows = highest - lowest + 1
    plot = Plot(WIDE, 44 + rows * min(22, 300 / rows), left=64)
    width, height = plot.inner
    wide, high = width / axis.steps, height / rows
    most = log1p(max(figures.latency.values()))
    for column in range(lowest, highest + 1):
        y = plot.y1 - (column - lowest + 1) * high
        plot.add(f'<path class="grid" d="M{plot.left:.1f} {y + high:.1f}H{plot.x1:.1f}"/>')
        label = "< 0" if column < 0 else duration(2 ** (column - 1)) if column else "0 ms"
        if rows <= 16 or column % 2 == 1 or column < 0:
            plot.text(plot.left - 8, y + high / 2 + 3.5, label, anchor="end")
    for (step, column), messages in sorted(figures.latency.items()):
        shade = 0.1 + 0.9 * (log1p(messages) / most) ** 2
        area = box(plot.left + step * wide, plot.y1 - (column - lowest + 1) * high, wide, high)
        shown = tip(
            f"{step_time(axis, step)} · {latency_label(column)}",
            [("heat", "messages", f"{messages:,}")],
        )
        style = "heat bad" if column < 0 else "heat"
        plot.add(f'<path class="{style}" opacity="{shade:.2f}" d="{area}"{shown}/>')
    _percentile_lines(plot, figures, lowest, wide, high)
    _time_labels(plot, axis)
    return plot.svg("Latency from produce to store over time")


def _percentile_lines(plot: Plot, figures: Figures, lowest: int, wide: float, high: float) -> None:
    """Draw the median and the 99th percentile."""
    by_step: dict[int, Counter[int]] = {}
    for (step, column), messages in figures.latency.items():
        by_step.setdefault(step, Counter())[column] += messages
    for share, style in ((0.5, "p50"), (0.99, "p99")):
        points = [
            (
                plot.left + (step + 0.5) * wide,
                plot.y1 - (_place_of(by_step[step], share) - lowest) * high,
            )
            for step in sorted(by_step)
        ]
        if len(points) == 1:
            points = [(plot.left, points[0][1]), (plot.x1, points[0][1])]
        plot.add(f'<path class="line {style}" d="{line(points)}"/>')


def _place_of(counts: Mapping[int, int], share: float) -> float:
    """Return the class that ``share`` of the messages are below, interpolated within it."""
    left = share * sum(counts.values())
    for column in sorted(counts):
        if left <= counts[column]:
            break
        left -= counts[column]
    return column + left / counts[column]


def queues(topic: TopicFigures, number_of_class: int) -> str:
    """Draw the messages of each queue of a topic, with a line at the mean."""
    plot = Plot(256, 92, left=2, right=2, top=6, bottom=18)
    ids = sorted(topic.queues)
    most = max(topic.queues.values())
    width, height = plot.inner
    wide = min(width / len(ids), 28)
    for place, queue_id in enumerate(ids):
        messages = topic.queues[queue_id]
        high = max(messages / most * height, 1)
        area = box(plot.left + place * wide + 0.5, plot.y1 - high, max(wide - 1, 0.6), high)
        share = f"{messages / topic.messages:.1%}"
        shown = tip(
            f"{topic.name}/{queue_id}",
            [(f"t{number_of_class}", "messages", f"{messages:,}"), ("", "share", share)],
        )
        plot.add(f'<path class="f t{number_of_class}" d="{area}"{shown}/>')
    mean = plot.y1 - topic.messages / len(ids) / most * height
    end = plot.left + wide * len(ids)
    plot.add(f'<path class="mean" d="M{plot.left:.1f} {mean:.1f}H{end:.1f}"/>')
    plot.x_labels(
        (plot.left + (place + 0.5) * wide, str(queue_id)) for place, queue_id in enumerate(ids)
    )
    return plot.svg(f"Messages by queue of {topic.name}")


def attempts(figures: Figures) -> str:
    """Draw the number of records by earlier deliveries."""
    counts = {times: figures.attempts[times] for times in sorted(figures.attempts) if times > 0}
    plot = Plot(HALF, 200)
    numbers = range(1, max(*counts, 8) + 1)
    ticks = nice_ticks(max(counts.values()))
    plot.y_axis(ticks, [number(tick) for tick in ticks])
    width, height = plot.inner
    wide = width / len(numbers)
    columns = BarColumns(numbers, plot.left, wide, wide * 0.3, ticks[-1])
    for place, times in enumerate(numbers):
        messages = counts.get(times, 0)
        high = messages / ticks[-1] * height
        shown = tip(f"delivered {times + 1} times", [("warn", "messages", f"{messages:,}")])
        area = box(plot.left + place * wide + wide * 0.15, plot.y1 - high, wide * 0.7, high)
        plot.add(f'<path class="warn" d="{area}"/>')
        plot.add(f'<path class="hit" d="{columns.area(plot, times)}"{shown}/>')
    plot.x_labels(
        (plot.left + (place + 0.5) * wide, str(times)) for place, times in enumerate(numbers)
    )
    return plot.svg("Messages by number of earlier deliveries")


def segment_map(figures: Figures) -> str:
    """Draw the log as cells in the colour of the topic with most bytes in each."""
    axis = figures.map
    names = topic_names(figures)
    left = 152.0
    plot = Plot(left + axis.cells * _PITCH, axis.rows * (_PITCH + 5) + 6)
    offsets = (flaw.physical_offset for flaw in figures.flaws)
    flawed = Counter(axis.cell_of(offset) for offset in offsets if offset is not None)
    used_to = axis.cell_of(figures.log_end - 1)
    for row in range(axis.rows):
        y = 4 + row * (_PITCH + 5)
        base = axis.start + row * axis.row
        plot.text(0, y + 9.5, segment_name(base), "mono")
        for place in range(axis.cells):
            cell = row * axis.cells + place
            style, what = _cell_style(figures, cell, names, used_to)
            lines = [(style, what, "")]
            if flawed[cell]:
                style = "bad"
                lines.append(("bad", "damage", str(flawed[cell])))
            shown = tip(f"offset {base + place * axis.row // axis.cells:,}", lines)
            x = left + place * _PITCH
            plot.add(
                f'<rect class="cell {style}" x="{x:.1f}" y="{y:.1f}" width="{_CELL:g}" '
                f'height="{_CELL + 2:g}" rx="2"{shown}/>'
            )
    return plot.svg("Map of the log")


def _cell_style(
    figures: Figures, cell: int, names: Mapping[int, str], used_to: int
) -> tuple[str, str]:
    """Return the colour class of an undamaged cell and a description of its content."""
    name = figures.cells.get(cell)
    if name is not None:
        return f"t{name}", f"mostly {names[name]}"
    if cell > used_to:
        return "free", "not written yet"
    # A record that spans cells is counted in the cell where it begins.
    before = next((figures.cells[c] for c in range(cell, -1, -1) if c in figures.cells), None)
    return ("free", "no record") if before is None else (f"t{before}", "inside a large record")


def bars(rows: list[tuple[str, str, int, str]], total: int) -> str:
    """Return a list with a bar per row; rows are (name, topic or kind, messages, colour class)."""
    most = max(row[2] for row in rows)
    lines = []
    for name, topic, messages, style in rows:
        shown = tip(
            f"{name}",
            [(style, topic, f"{messages:,}"), ("", "of all messages", f"{messages / total:.2%}")],
        )
        lines.append(
            f'<li{shown}><span class="bar {style}" style="width:{messages / most:.2%}"></span>'
            f'<span class="name">{escape(name)}<small>{escape(topic)}</small></span>'
            f"<b>{messages:,}</b></li>"
        )
    return f'<ol class="bars">{"".join(lines)}</ol>'


def legend(figures: Figures) -> str:
    """Return the legend of topic colours."""
    items = (
        f'<span data-topic="t{number}"><i class="t{number}"></i>{escape(name)}</span>'
        for number, name in topic_names(figures).items()
    )
    return f'<div class="legend">{"".join(items)}</div>'


def groups_of(figures: Figures, prefix: str) -> dict[str, int]:
    """Return the messages of each group's topic with a prefix, the largest number first."""
    found = {
        topic.name.removeprefix(prefix): topic.messages
        for topic in figures.topics
        if topic.name.startswith(prefix)
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))
