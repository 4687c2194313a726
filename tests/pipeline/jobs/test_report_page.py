"""The report's page: well-formed, self-contained, and safe with any content of the store."""

import re
from collections import Counter
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from firetrail.pipeline.jobs.report import charts, svg
from firetrail.pipeline.jobs.report.figures import (
    BUCKETS,
    MAP_CELLS,
    MAP_ROWS,
    TOPICS_SHOWN,
    Figures,
    FrequentValue,
    MapAxis,
    ReportedDamage,
    TimeAxis,
    TopicFigures,
)
from firetrail.pipeline.jobs.report.report_page import render

MADE = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
START = 1_794_700_000_000
EVIL = '</script><script>alert("x")</script>&<b>\t\n'
VOID = {"meta", "link", "br", "img", "input", "hr"}
DAY = 86_400_000


class Checker(HTMLParser):
    """Collects errors of a page: tags that do not match, and references to other files."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: Counter[str] = Counter()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "action", "srcset"} or name.startswith("on"):
                self.wrong.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.wrong
    assert not checker.open
    assert not re.search(r"https?:|url\(|@import|nan|inf\b", page), "the page needs nothing else"
    assert checker.tags["script"] == 1
    return checker


def figures(topics: int = 3, name: str = "topic") -> Figures:
    made = [
        TopicFigures(f"{name}-{n}", 100 - n, 40_000 - n, START, START + DAY, {0: 60, 1: 40 - n})
        for n in range(topics)
    ]
    found = Figures(
        "some/data",
        "closed",
        0,
        100_000,
        2,
        made,
        TimeAxis.over(START, START + DAY),
        MapAxis.over(0, 100_000, 65_536),
    )
    for n in range(min(topics, TOPICS_SHOWN + 1)):
        for step in range(0, found.times.steps, 3):
            found.messages[n, step] = 7 + n
            found.bytes[n, step] = 4096 + n
            found.latency[step, n - 1] = 9
        found.sizes[n, 16 + n] = 100
    found.attempts = Counter({0: 200, 1: 5, 16: 1})
    found.cells = {0: 0, 40: 1, 100: 2}
    found.tags = [FrequentValue(f"{name}-0", "paid", 50)]
    found.keys = [FrequentValue(f"{name}-1", "k", 5)]
    return found


def empty() -> Figures:
    return Figures("data", "closed", 0, 0, 0, [], TimeAxis.over(0, 0), MapAxis.over(0, 0, 0))


def test_a_page_has_all_sections() -> None:
    page = render(figures(), MADE)
    checker = check(page)
    assert checker.tags["svg"] >= 8
    text = " ".join(checker.text)
    for title in ("Throughput", "Topics", "Produce to store", "Queue skew", "Hot tags", "Hot keys"):
        assert title in text
    for title in ("Record sizes", "Retries and dead letters", "Segment map", "No damage."):
        assert title in text
    assert "2026-11-15 12:00 UTC" in text


def test_an_empty_store_has_no_charts() -> None:
    checker = check(render(empty(), MADE))
    assert "No damage." in " ".join(checker.text)
    assert "Throughput" not in " ".join(checker.text)


def test_topics_beyond_the_colours_are_summed_up() -> None:
    found = figures(TOPICS_SHOWN + 5)
    page = render(found, MADE)
    check(page)
    assert "5 other topics" in page
    assert f"t{TOPICS_SHOWN + 1}" not in page


def test_names_from_the_store_stay_text() -> None:
    found = figures(name=EVIL)
    found.store = f"data/{EVIL}"
    found.tags = [FrequentValue(EVIL, EVIL, 3)]
    found.keys = [FrequentValue(EVIL, EVIL, 3)]
    found.flaws = [ReportedDamage(EVIL, 3, 3, "body-crc", EVIL)]
    found.flaws_total = 1
    page = render(found, MADE)
    check(page)
    assert "alert(&quot;x&quot;)" in page


def test_damage_is_listed_up_to_a_limit() -> None:
    found = figures()
    found.flaws = [
        ReportedDamage("commitlog/0", n, 70_000 + n, "body-crc", "the body's checksum differs")
        for n in range(30)
    ]
    found.flaws_total = 31
    page = render(found, MADE)
    text = " ".join(check(page).text)
    assert "No damage" not in text
    assert "11 more are not listed" in text
    assert 'class="cell bad"' in page


def test_nothing_to_compare() -> None:
    found = figures(1)
    found.topics = [TopicFigures("t", 5, 500, START, START, {0: 5})]
    found.attempts = Counter({0: 5})
    found.cells = {0: 0}
    found.tags, found.keys = [], []
    text = " ".join(check(render(found, MADE)).text)
    for words in ("No topic has several queues", "No message has tags", "was redelivered"):
        assert words in text


@pytest.mark.parametrize(
    "span", [0, 1, 999, 60_000, 7_200_000, DAY, 400 * DAY, 30_000 * DAY, 10**15]
)
def test_the_time_axis_covers_its_range(span: int) -> None:
    axis = TimeAxis.over(START, START + span)
    assert axis.start <= START
    assert axis.time(axis.steps) > START + span
    assert 1 <= axis.steps <= BUCKETS
    assert axis.start % axis.width == 0
    ticks = svg.time_ticks(axis.start, axis.time(axis.steps), 1000)
    assert len(ticks) <= 12
    assert all(axis.start <= at <= axis.time(axis.steps) for at, _ in ticks)


@pytest.mark.parametrize(
    ("start", "end", "size", "rows", "segments_per_row"),
    [
        (0, 1, 1024, 1, 1),
        (0, 1024, 1024, 1, 1),
        (5000, 9000, 1024, 5, 1),
        (0, 1024 * MAP_ROWS, 1024, MAP_ROWS, 1),
        (0, 1024 * MAP_ROWS + 1, 1024, MAP_ROWS // 2 + 1, 2),
        (7, 7, 1024, 0, 1),
    ],
)
def test_the_map_covers_the_log(
    start: int, end: int, size: int, rows: int, segments_per_row: int
) -> None:
    axis = MapAxis.over(start, end, size)
    assert (axis.rows, axis.segments_per_row) == (rows, segments_per_row)
    if rows:
        assert 0 <= axis.cell_of(start) <= axis.cell_of(end - 1) < rows * MAP_CELLS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (9999, "9,999"),
        (12_345, "12.3 k"),
        (999_499, "999 k"),
        (999_950, "1 M"),
        (2e9, "2 G"),
    ],
)
def test_numbers_are_shortened(value: float, text: str) -> None:
    assert svg.number(value) == text


@pytest.mark.parametrize("top", [0, 0.3, 1, 7, 99, 100, 12_345, 1e9])
@pytest.mark.parametrize("base", [2, 10])
def test_ticks_reach_the_top(top: float, base: int) -> None:
    ticks = svg.nice_ticks(top, base=base)
    assert ticks[0] == 0
    assert ticks[-1] >= top
    assert 2 <= len(ticks) <= 6
    assert ticks[-1] < 2 * top or top == 0


def test_percentiles_are_upper_bounds_of_their_class() -> None:
    counts = Counter({-1: 1, 0: 49, 3: 49, 10: 1})
    assert charts.percentile(counts, 0.5) == 1
    assert charts.percentile(counts, 0.99) == 8
    assert charts.percentile(counts, 1) == 1024
    assert charts.percentile(Counter(), 0.5) == 0
