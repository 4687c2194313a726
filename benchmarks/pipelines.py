"""The measurements of the Spark pipeline, each against what it should be compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench, Snapshot
from benchmarks.contestants import Java, firetrail
from benchmarks.figures import Json, Line, Unit, samples
from benchmarks.load import BATCH, QUEUES, some_keys
from benchmarks.measurements import OURS, fill, size_text
from firetrail.format.names import CONSUME_QUEUE


def spark_scan(bench: Bench) -> Iterator[Line]:
    """Measure how fast Spark reads the log, against Spark's limit and for growing logs."""
    for size in bench.scale.spark_sizes:
        with bench.folder("store") as store:
            fill(bench, store, size)
            answers = _turns(bench, "spark_scans", store)
        full = samples(Unit.BYTES, answers, "full")
        limit = samples(Unit.BYTES, answers, "limit")
        name = size_text(size)
        yield Line(f"Spark, all of {name}", full, "prebuilt batches", limit, 0.6)
        metadata = samples(Unit.BYTES, answers, "metadata")
        yield Line(
            f"Spark, {name} without bodies and properties", metadata, "with bodies", full, 1.5
        )


def spark_archive(bench: Bench) -> Iterator[Line]:
    """Parquet by the archive, and by Spark's writer."""
    size = bench.scale.spark_sizes[0]
    with bench.folder("store") as store:
        fill(bench, store, size)
        answers = _turns(bench, "spark_archive", store)
    ours = samples(Unit.SECONDS, answers, "archive")
    theirs = samples(Unit.SECONDS, answers, "spark")
    yield Line(f"archive {size_text(size)} to zstd Parquet", ours, "Spark's writer", theirs, 2.0)


def spark_rebuild(bench: Bench) -> Iterator[Line]:
    """Queues and index from the log, against a Java store that misses its queues."""
    for size in (bench.scale.open_small, bench.scale.recover):
        title = f"rebuild from {size_text(size)}"
        with bench.folder("store") as store:
            fill(bench, store, size)
            snapshot = Snapshot(store)

            def java_rebuilds(java: Java, store: Path = store, saved: Snapshot = snapshot) -> Json:
                saved.restore(without=(CONSUME_QUEUE,))
                saved.warm_up()
                figures = java.run("bench-recover", store, "--log-size", bench.scale.log_size)
                return {"seconds": figures["seconds_started"]}

            def we_rebuild(store: Path = store, saved: Snapshot = snapshot) -> Json:
                saved.restore()
                saved.warm_up()
                return firetrail("spark_rebuild", store, rounds=1)

            runs: dict[str, Callable[[], Json]] = {
                java.name: partial(java_rebuilds, java) for java in bench.javas
            }
            answers = bench.take_turns(runs | {OURS: we_rebuild})
        ours = samples(Unit.SECONDS, answers[OURS], "seconds")
        if not bench.javas:
            yield Line(title, ours)
        for java in bench.javas:
            theirs = samples(Unit.SECONDS, answers[java.name], "seconds")
            yield Line(title, ours, java.name, theirs, 3.0)


def spark_key(bench: Bench) -> Iterator[Line]:
    """Measure reading one key, through the index and by a scan."""
    size = max(bench.scale.spark_sizes[0], bench.scale.open_small)
    with bench.folder("store") as store:
        fill(bench, store, size)
        keys = store.with_name("keys.txt")
        messages = size // 400 // BATCH * BATCH
        keys.write_text("\n".join(some_keys(100, messages)), encoding="utf-8")
        answers = _turns(bench, "spark_key", store, keys_file=str(keys))
        keys.unlink()
    for title, prefix, wanted in (
        (f"a key in {size_text(size)} by the index, as a Spark query", "", None),
        (f"a key in {size_text(size)} by the index, the source alone", "source_", 100.0),
    ):
        ours = samples(Unit.SECONDS, answers, f"{prefix}index")
        scan = samples(Unit.SECONDS, answers, f"{prefix}scan")
        yield Line(title, ours, "by a scan", scan, wanted)


def spark_pruning(bench: Bench) -> Iterator[Line]:
    """Measure reading a small part of a store, pruned by options, by ``sql`` and by a filter."""
    size = bench.scale.spark_sizes[0]
    with bench.folder("store") as store:
        fill(bench, store, size)
        answers = _turns(bench, "spark_pruning", store)
    for title, ours, theirs in (
        ("a rare topic of {} by an option", "topic_option", "topic_frame"),
        ("a rare topic of {} by `sql`", "topic_sql", "topic_frame"),
        ("1 % of the time of {} by options", "time_option", "time_frame"),
    ):
        yield Line(
            title.format(size_text(size)),
            samples(Unit.SECONDS, answers, ours),
            "a filter on a frame",
            samples(Unit.SECONDS, answers, theirs),
        )


def planning(bench: Bench) -> Iterator[Line]:
    """Planning among many queues: of all of them, and of one topic."""
    topics = bench.scale.topics
    with bench.folder("store") as store:
        bench.say(f"  {OURS} writes {topics:,} topics")
        firetrail("spark_fill_queues", store, topics=topics)
        answers = _turns(bench, "spark_planning", store)
    queues = f"{topics * QUEUES:,} queues"
    for name, title, limit in (
        ("all", f"plan a read of {queues}", 2.0),
        ("one", f"plan a read of one topic of {queues}", 0.2),
    ):
        for heat, state in (("cold", "from the disk"), ("warm", "from memory")):
            found = samples(Unit.SECONDS, answers, f"{name}_{heat}")
            yield Line(f"{title}, {state}", found, limit=limit)


def _turns(bench: Bench, command: str, store: Path, **arguments: str) -> list[Json]:
    run = partial(firetrail, command, store, rounds=bench.scale.rounds, **arguments)
    return bench.take_turns({OURS: run})[OURS]


PIPELINES: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "spark-scan": spark_scan,
    "spark-archive": spark_archive,
    "spark-rebuild": spark_rebuild,
    "spark-key": spark_key,
    "spark-pruning": spark_pruning,
    "spark-planning": planning,
}
