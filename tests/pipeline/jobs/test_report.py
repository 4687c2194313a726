"""The report's figures compared with a count by hand, and the command."""

from collections import Counter
from math import floor, log2
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline.shops import MESSAGES, make_shop
from tests.stores import field_position, flip, log_file, records

from firetrail import Message, Store
from firetrail.cli import main as cli
from firetrail.cli.subcommand import ExitCode
from firetrail.format.properties import KEYS, TAGS
from firetrail.pipeline.jobs.report import Figures, figure_queries, report
from firetrail.pipeline.jobs.report.figure_queries import HOT_MAX


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shop(tmp_path_factory.mktemp("shop") / "data")


@pytest.fixture(scope="module")
def made(spark: SparkSession, shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    page = tmp_path_factory.mktemp("page") / "report.html"
    figures = report(spark, shop, page)
    assert "<h1>data</h1>" in page.read_text()
    return figures


def latency_class(ms: int) -> int:
    return -1 if ms < 0 else 0 if ms == 0 else floor(log2(ms)) + 1


def test_totals_equal_a_count_by_hand(made: Figures, shop: Path) -> None:
    found = records(shop)
    assert made.total == len(found) == MESSAGES
    assert made.size == sum(record.size for record in found)
    assert made.flaws_total == 0
    assert made.state == "closed"
    assert made.segments > 1
    for topic in made.topics:
        mine = [record for record in found if record.topic == topic.name]
        assert topic.messages == len(mine)
        assert topic.queues == Counter(record.queue_id for record in mine)
        assert topic.first == mine[0].store_time
        assert topic.last == mine[-1].store_time
    assert [t.size for t in made.topics] == sorted((t.size for t in made.topics), reverse=True)


def test_delayed_transactional_and_retried_messages_have_no_latency(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Brokers store them again when their time has come, with the time of birth of the first."""
    old = 1_700_000_000_000
    with Store.open(tmp_path / "data", small_config()) as store:
        store.put(Message("T", b"at once"))
        for properties in ({"REAL_TOPIC": "T"}, {"TIMER_OUT_MS": "1"}, {"DELAY": "3"}):
            store.put(Message("T", b"late", properties=properties, born_time=old))
        store.put(Message("T", b"committed", sys_flag=0x8, born_time=old))
        store.put(Message("%RETRY%g", b"again", reconsume_times=2, born_time=old))
    page = tmp_path / "page.html"
    figures = report(spark, tmp_path / "data", page)
    assert sum(figures.latency.values()) == 1
    assert figures.stored_later == 5
    assert max(column for _, column in figures.latency) < 30
    assert "Left out: 5 delayed, transactional or retried messages" in page.read_text()


def test_all_figures_are_about_the_same_records_of_a_live_store(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All figures are about the messages that existed at the beginning."""
    with Store.open(tmp_path / "data", small_config()) as store:

        def put(topic: str, count: int) -> None:
            for number in range(count):
                store.put(Message(topic, b"%d" % number, tags=topic, keys=["k"]))
            store.wait_dispatched()

        def add_late(figures: Figures, *rest: Any) -> None:
            put("late", 5)
            add_classes(figures, *rest)

        add_classes = figure_queries._add_classes
        monkeypatch.setattr(figure_queries, "_add_classes", add_late)
        put("early", 10)
        figures = figure_queries.gather_figures(spark, tmp_path / "data")
    assert figures.total == 10
    for counter in (figures.messages, figures.sizes, figures.latency, figures.attempts):
        assert sum(counter.values()) == 10
    assert [(hot.text, hot.messages) for hot in (*figures.tags, *figures.keys)] == [
        ("early", 10),
        ("k", 10),
    ]


def test_counts_by_class_equal_a_count_by_hand(made: Figures, shop: Path) -> None:
    found = records(shop)
    places = {topic.name: place for place, topic in enumerate(made.topics)}
    steps = [(r.store_time - made.times.start) // made.times.width for r in found]
    topics = [places[record.topic] for record in found]
    assert made.messages == Counter(zip(topics, steps, strict=True))
    assert made.sizes == Counter(
        (topic, floor(2 * log2(r.size))) for topic, r in zip(topics, found, strict=True)
    )
    assert made.latency == Counter(
        (step, latency_class(r.store_time - r.born_time))
        for step, r in zip(steps, found, strict=True)
        if r.reconsume_times == 0
    )
    assert made.stored_later == sum(record.reconsume_times > 0 for record in found)
    assert made.attempts == Counter(min(record.reconsume_times, 16) for record in found)
    bytes_by = Counter[tuple[int, int]]()
    for topic, step, record in zip(topics, steps, found, strict=True):
        bytes_by[topic, step] += record.size
    assert made.bytes == bytes_by


def test_cells_of_the_map_have_their_largest_topic(made: Figures, shop: Path) -> None:
    places = {topic.name: place for place, topic in enumerate(made.topics)}
    weights: dict[int, Counter[int]] = {}
    for record in records(shop):
        cell = made.map.cell_of(record.physical_offset)
        weights.setdefault(cell, Counter())[places[record.topic]] += record.size
    assert made.cells.keys() == weights.keys()
    for cell, topic in made.cells.items():
        assert weights[cell][topic] == max(weights[cell].values())


@pytest.mark.parametrize(("name", "of"), [(TAGS, "tags"), (KEYS, "keys")])
def test_hot_tags_and_keys_equal_a_count_by_hand(
    made: Figures, shop: Path, name: str, of: str
) -> None:
    counts = Counter(
        (record.topic, text)
        for record in records(shop)
        for text in record.properties.get(name, "").split()
    )
    hot = getattr(made, of)
    expected = sorted(counts.items(), key=lambda item: (-item[1], *item[0]))[:HOT_MAX]
    assert [((h.topic, h.text), h.messages) for h in hot] == expected


def test_damage_is_listed_and_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "data", seed=8)
    bad = records(shop)[300]
    path, at = log_file(shop, bad.physical_offset)
    base = bad.physical_offset - at
    flip(path, field_position(path.read_bytes(), base, at, "body"))
    figures = report(spark, shop, tmp_path / "report.html")
    (flaw,) = figures.flaws
    assert figures.flaws_total == 1
    assert (flaw.file, flaw.position) == (str(path.relative_to(shop)), at)
    assert (flaw.kind, flaw.physical_offset) == ("body-crc", bad.physical_offset)
    assert figures.total == MESSAGES - 1


def test_a_report_of_an_empty_store_says_so(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data" / "commitlog").mkdir(parents=True)
    figures = report(spark, tmp_path / "data", tmp_path / "report.html")
    assert (figures.total, figures.topics, figures.flaws) == (0, [], [])
    assert "no messages" in (tmp_path / "report.html").read_text()


def test_the_command_writes_the_page(
    spark: SparkSession, shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert cli.main(["pipeline", "report", str(shop), "--out", str(page)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.startswith(f"{page}: {MESSAGES} messages of ")
    assert out.endswith(", no damage\n")
    assert page.read_text().endswith("</html>\n")


def test_a_missing_store_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    arguments = ["pipeline", "report", str(tmp_path / "nowhere"), "--out", str(page)]
    assert cli.main(arguments) == ExitCode.USAGE
    assert "nowhere: no such folder" in capsys.readouterr().err
    assert not page.exists()


def test_a_page_that_cannot_be_written(
    tmp_path: Path, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "no folder" / "report.html"
    assert cli.main(["pipeline", "report", str(shop), "--out", str(page)]) == ExitCode.USAGE
    assert "no folder: no such folder" in capsys.readouterr().err
