"""The report as a self-contained HTML page: it needs no network, fonts or libraries."""

from collections.abc import Iterator
from datetime import datetime
from html import escape

from firetrail.format.names import DLQ_PREFIX, RETRY_PREFIX
from firetrail.pipeline.jobs.report import charts
from firetrail.pipeline.jobs.report.blocks import fine, page, plot, section, tile
from firetrail.pipeline.jobs.report.figures import TOPICS_SHOWN, Figures, ReportedDamage
from firetrail.pipeline.jobs.report.svg import duration, moment, number, size
from firetrail.text import counted, human_size

_TABLE_MAX = 20
_SKEW_TOPICS = 8
_GROUPS_MAX = 6
_SKEW_HIGHLIGHTED = 1.5


def render(figures: Figures, created: datetime) -> str:
    """Return the page; ``created`` is the time shown in its footer."""
    name = figures.store.rstrip("/").rsplit("/", 1)[-1]
    return page(
        brand="Firetrail report",
        head=name,
        subtitle=_subtitle(figures),
        tiles=_tiles(figures),
        sections=_sections(figures),
        store=figures.store,
        created=created,
        note="Times are UTC; numbers of messages are records in the log.",
    )


def _subtitle(figures: Figures) -> str:
    parts = [f"store {figures.state}", counted(figures.segments, "segment")]
    if figures.topics:
        first = min(topic.first for topic in figures.topics)
        last = max(topic.last for topic in figures.topics)
        parts.insert(0, f"{moment(first)} to {moment(last)}")
    return " · ".join(parts)


def _tiles(figures: Figures) -> Iterator[str]:
    """Yield the numbers at the top of the page."""
    total = figures.total
    average = figures.size / total if total else 0
    yield tile("Messages", f"{total:,}", f"{size(average)} on average")
    written = figures.log_end - figures.log_start
    amount, unit = human_size(written).split()
    offsets = f"offsets {figures.log_start:,} to {figures.log_end:,}"
    yield tile("Log", amount, offsets, unit=unit)
    busiest = figures.topics[0].name if figures.topics else "none"
    queues = sum(len(topic.queues) for topic in figures.topics)
    yield tile("Topics", f"{len(figures.topics):,}", f"{counted(queues, 'queue')}, most: {busiest}")
    rate, when = _peak(figures)
    yield tile("Peak", rate, when, unit="msg/s")
    yield _latency_tile(figures)
    retried = sum(charts.groups_of(figures, RETRY_PREFIX).values())
    yield tile("Retries", f"{retried:,}", "messages in retry topics", "warn" if retried else "good")
    dead = sum(charts.groups_of(figures, DLQ_PREFIX).values())
    yield tile("Dead letters", f"{dead:,}", "messages retried too often", "bad" if dead else "good")
    flaws = figures.flaws_total
    yield tile(
        "Damage",
        f"{flaws:,}" if flaws else "none",
        "positions in the log" if flaws else "every checksum is correct",
        "bad" if flaws else "good",
    )


def _latency_tile(figures: Figures) -> str:
    counts = charts.latency_counts(figures)
    if not counts:
        return tile("Produce to store, p99", "none", "no messages that are stored at once")
    half, most = (duration(charts.percentile(counts, share)) for share in (0.5, 0.99))
    return tile("Produce to store, p99", f"≤ {most}", f"median ≤ {half}")


def _latency(figures: Figures) -> tuple[str, str]:
    """Return the note and the plot about latency."""
    note = (
        "Time from a message's creation by the producer to its store time; the stronger the "
        "colour, the more messages."
    )
    if later := figures.stored_later:
        left_out = counted(later, "delayed, transactional or retried message")
        note += f" Left out: {left_out}, because brokers store them again later."
    if not figures.latency:
        return note, ""
    return note, (
        '<div class="legend"><span><i class="dash"></i>median</span>'
        '<span><i class="dash p99"></i>99th percentile</span></div>' + plot(charts.latency(figures))
    )


def _peak(figures: Figures) -> tuple[str, str]:
    """Return the rate of the busiest step of the time axis, and its time."""
    by_step: dict[int, int] = {}
    for (_, step), messages in figures.messages.items():
        by_step[step] = by_step.get(step, 0) + messages
    if not by_step:
        return "0", "no messages"
    step = max(by_step, key=lambda at: by_step[at])
    rate = number(by_step[step] * 1000 / figures.times.width)
    return rate, f"at {charts.step_time(figures.times, step)}"


def _sections(figures: Figures) -> Iterator[str]:
    legend = charts.legend(figures)
    if figures.total:
        rates = plot(charts.over_time(figures, figures.messages, number, "Messages over time"))
        loads = plot(charts.over_time(figures, figures.bytes, size, "Bytes over time"))
        yield section(
            "Throughput",
            f"Messages and bytes per second by topic, in steps of {duration(figures.times.width)}.",
            f"{legend}<h3>Messages</h3>{rates}<h3>Bytes of log</h3>{loads}",
            wide=True,
        )
        yield section("Topics", _topics_note(figures), _topics(figures), wide=True)
        yield section("Produce to store", *_latency(figures), wide=True)
        yield section("Queue skew", *_skew(figures), wide=True)
        yield section("Hot tags", "The most frequent tags, by topic.", _hot(figures, "tags"))
        yield section("Hot keys", "The most frequent keys, by topic.", _hot(figures, "keys"))
        yield section(
            "Record sizes", "Bytes per record in the log.", legend + plot(charts.sizes(figures))
        )
        yield section("Retries and dead letters", *_retries(figures))
    if figures.map.rows:
        yield section(
            "Segment map",
            f"{_map_note(figures)} The colour is that of the topic with most bytes in the cell.",
            legend.replace(
                "</div>",
                '<span><i class="free"></i>not written</span>'
                '<span><i class="bad"></i>damage</span></div>',
            )
            + plot(charts.segment_map(figures)),
            wide=True,
        )
    yield section("Damage", *_damage(figures), wide=True)


def _topics_note(figures: Figures) -> str:
    if len(figures.topics) <= _TABLE_MAX:
        return "Sorted by bytes."
    return f"Sorted by bytes; the first {_TABLE_MAX} of {len(figures.topics):,}."


def _topics(figures: Figures) -> str:
    rows = []
    largest = figures.topics[0].size
    for place, topic in enumerate(figures.topics[:_TABLE_MAX]):
        share, meter = topic.size / figures.size, topic.size / largest
        style = f"t{min(place, TOPICS_SHOWN)}"
        rows.append(
            f'<tr class="{style}"><td class="name"><i></i>{escape(topic.name)}</td>'
            f'<td class="n">{topic.messages:,}</td><td class="n">{human_size(topic.size)}</td>'
            f'<td class="meter"><span class="share" style="width:{meter:.1%}"></span></td>'
            f'<td class="n">{share:.1%}</td><td class="n">{size(topic.size / topic.messages)}</td>'
            f'<td class="n">{len(topic.queues):,}</td>'
            f'<td class="n nowrap">{moment(topic.last)}</td></tr>'
        )
    return (
        '<div class="plot"><table><thead><tr><th>topic</th><th class="n">messages</th>'
        '<th class="n">bytes</th><th colspan="2" class="n">share</th><th class="n">average</th>'
        f'<th class="n">queues</th><th class="n">last stored</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _skew(figures: Figures) -> tuple[str, str]:
    """Return note and content: small charts of the topics with several queues."""
    several = [
        (place, topic)
        for place, topic in enumerate(figures.topics)
        if len(topic.queues) > 1 and not topic.name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    ]
    if not several:
        return "Messages by queue.", fine("Nothing to compare.", "No topic has several queues.")
    parts = []
    for place, topic in several[:_SKEW_TOPICS]:
        skewed = topic.skew >= _SKEW_HIGHLIGHTED
        text = f"the busiest queue has {topic.skew:.2g} times the mean"
        note = f"<b>{text}</b>" if skewed else text
        plot = charts.queues(topic, min(place, TOPICS_SHOWN))
        parts.append(
            f'<div><h3>{escape(topic.name)}</h3>{plot}<div class="note">{note}</div></div>'
        )
    return (
        "Messages by queue; the dashed line is the mean.",
        f'<div class="many">{"".join(parts)}</div>',
    )


def _hot(figures: Figures, what: str) -> str:
    found = figures.tags if what == "tags" else figures.keys
    if not found:
        return fine("None.", f"No message has {what}.")
    classes = {topic.name: f"t{place}" for place, topic in enumerate(figures.shown)}
    rows = [
        (hot.text, hot.topic, hot.messages, classes.get(hot.topic, f"t{TOPICS_SHOWN}"))
        for hot in found
    ]
    return charts.bars(rows, figures.total)


def _retries(figures: Figures) -> tuple[str, str]:
    """Return note and content: retries by consumer group, and earlier deliveries of messages."""
    again = sum(count for times, count in figures.attempts.items() if times > 0)
    rows = [
        (group, what, count, style)
        for prefix, what, style in (
            (RETRY_PREFIX, "retries", "warn"),
            (DLQ_PREFIX, "dead letters", "bad"),
        )
        for group, count in charts.groups_of(figures, prefix).items()
    ]
    note = "Messages that consumers failed to process, by consumer group."
    if not rows and not again:
        return note, fine("None.", "No message was redelivered, and none is a dead letter.")
    content = ""
    if rows:
        most = sorted(rows, key=lambda row: -row[2])[:_GROUPS_MAX]
        content = charts.bars(most, figures.total)
    if again:
        content += f"<h3>Earlier deliveries of a message</h3>{plot(charts.attempts(figures))}"
    return note, content


def _map_note(figures: Figures) -> str:
    rows = figures.map
    row = (
        "Each row is a segment"
        if rows.segments_per_row == 1
        else (f"Each row is {rows.segments_per_row} segments")
    )
    return f"{row}, each cell {size(rows.row / rows.cells)} of the log."


def _damage(figures: Figures) -> tuple[str, str]:
    read = f"{figures.total:,} records of {human_size(figures.size)}"
    if not figures.flaws_total:
        return (
            "Every record was read and its checksums were verified.",
            fine("No damage.", f"{read} are all as they were written."),
        )
    rows = "".join(map(_flaw, figures.flaws[:_TABLE_MAX]))
    hidden = figures.flaws_total - min(len(figures.flaws), _TABLE_MAX)
    more = f" {hidden:,} more are not listed." if hidden else ""
    return (
        f"Damaged positions in the log; {read} are undamaged.{more} "
        "Run 'firetrail fsck' for details and repair.",
        '<div class="plot"><table><thead><tr><th>file</th><th class="n">at</th>'
        '<th class="n">offset in the log</th><th>kind</th><th>detail</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>",
    )


def _flaw(flaw: ReportedDamage) -> str:
    offset = "" if flaw.physical_offset is None else f"{flaw.physical_offset:,}"
    return (
        f'<tr><td><code>{escape(flaw.file)}</code></td><td class="n">{flaw.position:,}</td>'
        f'<td class="n">{offset}</td><td>{escape(flaw.kind)}</td>'
        f"<td>{escape(flaw.detail)}</td></tr>"
    )
