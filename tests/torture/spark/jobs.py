"""Jobs of the pipeline that are killed: the input of each, and the outcome that it must have.

A job works in a folder of its own. There it reads ``source``, which :meth:`Job.prepare` creates,
and writes its output beside it. The outcome is checked by code that shares nothing with the job:
source equals sink by id.
"""

import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.crash.files_check import read_log
from tests.crash.oracle import Violation
from tests.helpers import small_config
from tests.stores import overwrite
from tests.torture.spark.outcomes import (
    READ,
    bodies,
    listed_rows,
    log_of,
    nothing_left,
    same,
    same_files,
    sound,
)

from firetrail import Message, Store
from firetrail.pipeline.jobs import restore
from firetrail.pipeline.jobs.archive import archive_job as archive_module
from firetrail.pipeline.jobs.archive import compaction
from firetrail.pipeline.jobs.rebuild import rebuild_job as rebuild
from firetrail.pipeline.jobs.replay import replay_job as replay
from firetrail.pipeline.jobs.replay.targets import StoreTarget
from firetrail.pipeline.sink import sink_columns, store_writers

MESSAGES = 24
SPLIT_BYTES = 4096


class Alone:
    """A substitute for Spark that runs tasks one after the other in this (forked) process."""

    sparkContext = SimpleNamespace(defaultParallelism=2)

    def __init__(self) -> None:
        for module in (archive_module, compaction, rebuild, restore):
            module.run_tasks = self.run_tasks  # type: ignore[attr-defined]
        replay._Replay.find = _find  # type: ignore[method-assign]

    @staticmethod
    def run_tasks(
        spark: object, function: Callable[[Any], Any], tasks: Iterable[Any], **_: object
    ) -> list[Any]:
        return [function(task) for task in tasks]


def _find(self: Any, start: int, end: int) -> Iterator[Any]:
    """Yield the messages that the predicate of :class:`Replay` chooses."""
    for raw in read_log(self._view.root / "commitlog")[0]:
        if raw.topic == "orders" and start <= raw.offset < end:
            yield replay._SelectedMessage(raw.offset, raw.size)


# -- the jobs -------------------------------------------------------------------------------------


class Job:
    """One job; ``spark`` is a session, or :class:`Alone`."""

    name = ""

    def prepare(self, folder: Path) -> None:
        with Store.open(folder / "source", small_config()) as store:
            for number in range(MESSAGES):
                topic = ("orders", "others")[number % 2]
                body = b"%d" % number + b"." * 100
                store.put(Message(topic, body, keys=[f"k{number}"], queue_id=number // 2 % 2))

    def run(self, spark: Any, folder: Path) -> None:
        """Run the job, or the rest of it after a kill."""
        raise NotImplementedError

    def check(self, folder: Path) -> None:
        """Raise a Violation unless everything is done."""
        raise NotImplementedError


class Archive(Job):
    """An archive written in several parts, whose files are then merged."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.name = f"archive {table}"

    def run(self, spark: Any, folder: Path) -> None:
        with _set(compaction, FEW=1):
            archive_module.archive(
                spark,
                folder / "source",
                folder / "lake",
                format=self.table,
                split_bytes=SPLIT_BYTES,
                compaction=True,
            )

    def check(self, folder: Path) -> None:
        lake = folder / "lake"
        manifest = json.loads((lake / "_firetrail" / "manifest.json").read_bytes())
        files = {file["path"] for file in manifest["files"]}
        source = [(raw.topic, raw.offset, raw.body) for raw in log_of(folder / "source")]
        same(source, listed_rows(lake, manifest), f"{self.name}, by its manifest")
        if self.table != "parquet":
            same(source, READ[self.table](lake), self.name)
        known = files | {file["path"] for file in manifest["retired"]}
        there = {path.relative_to(lake).as_posix() for path in lake.rglob("day=*/*.parquet")}
        if there - known:
            raise Violation(f"I2: {self.name}: files that are not in the manifest: {there - known}")
        if (lake / "_firetrail" / "pending.json").exists():
            raise Violation(f"I2: {self.name}: still pending")
        (mark,) = (folder / "source").glob("firetrail.archived.*")
        if json.loads(mark.read_bytes())["archived_to"] != manifest["ranges"][-1]["end"]:
            raise Violation(f"I4: {self.name}: the store knows of another end: {mark.read_text()}")


class Replay(Job):
    """A replay in several commits into a store that already has messages."""

    name = "replay"

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        _begin(folder / "target")

    def run(self, spark: Any, folder: Path) -> None:
        with _set(StoreTarget, commit_messages=7):
            replay.replay(
                spark,
                folder / "source",
                folder / "target",
                where="topic = 'orders'",
                topic="again",
                config=small_config(),
            )

    def check(self, folder: Path) -> None:
        sound(folder / "target")
        wanted = bodies(folder / "source", "orders")
        same(wanted, bodies(folder / "target", "again"), self.name)
        same([b"old"], bodies(folder / "target", "before"), self.name)


class Restore(Job):
    """A restore of a whole archive."""

    name = "restore"

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        with _set(archive_module, run_tasks=Alone.run_tasks):
            archive_module.archive(
                Alone,  # type: ignore[arg-type]
                folder / "source",
                folder / "lake",
                split_bytes=SPLIT_BYTES,
                compaction=False,
            )

    def run(self, spark: Any, folder: Path) -> None:
        if not (folder / "back").exists():
            restore.restore(spark, folder / "lake", folder / "back")

    def check(self, folder: Path) -> None:
        sound(folder / "back")
        same(log_of(folder / "source"), log_of(folder / "back"), self.name)
        nothing_left(folder, {"source", "lake", "back"})


class Rebuild(Job):
    """A rebuild of queues and index in another folder."""

    name = "rebuild"

    def run(self, spark: Any, folder: Path) -> None:
        if not (folder / "made").exists():
            rebuild.rebuild(spark, folder / "source", folder / "made")

    def check(self, folder: Path) -> None:
        same_files(folder / "source", folder / "made")
        nothing_left(folder, {"source", "made"})


class RebuildInPlace(Job):
    """A repair of a store whose queues are damaged."""

    name = "rebuild in place"

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        shutil.copytree(folder / "source", folder / "good")
        (queue,) = (folder / "source" / "consumequeue" / "orders" / "0").glob("*0")
        overwrite(queue, 0, b"\xff" * 40)

    def run(self, spark: Any, folder: Path) -> None:
        rebuild.rebuild(spark, folder / "source")

    def check(self, folder: Path) -> None:
        sound(folder / "source")
        same(log_of(folder / "good"), log_of(folder / "source"), self.name)
        same_files(folder / "good", folder / "source")


class Sink(Job):
    """A batch write by two tasks, identified by its write id."""

    name = "sink"

    def prepare(self, folder: Path) -> None:
        _begin(folder / "target")

    def run(self, spark: Any, folder: Path) -> None:
        if isinstance(spark, Alone):
            options = {"path": str(folder / "target"), "writeId": "w"}
            given = sink_columns.parse_options(options, stream=False)
            writer = store_writers.BatchWriter(given, given.staging / uuid.uuid4().hex)
            halves = (range(MESSAGES // 2), range(MESSAGES // 2, MESSAGES))
            writer.commit([_staged(writer, half) for half in halves])
            return
        rows = spark.range(0, MESSAGES, 1, 2).selectExpr(
            "'sunk' as topic", "cast(id as string) as body"
        )
        written = rows.write.format("rocketmq").option("writeId", "w").mode("append")
        written.save(str(folder / "target"))

    def check(self, folder: Path) -> None:
        sound(folder / "target")
        wanted = [b"%d" % number for number in range(MESSAGES)]
        same(wanted, bodies(folder / "target", "sunk"), self.name)
        same([b"old"], bodies(folder / "target", "before"), self.name)


class Stream(Job):
    """A stream from one store to another in several batches."""

    name = "stream"

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        _begin(folder / "target")

    def run(self, spark: Any, folder: Path) -> None:
        if isinstance(spark, Alone):
            self._run_alone(folder)
            return
        rows = _followed(spark, folder).selectExpr("'sunk' as topic", "body", "queue_id")
        query = (
            rows.writeStream.format("rocketmq")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "target"))
        )
        query.awaitTermination()

    def _run_alone(self, folder: Path) -> None:
        """Continue with the first batch whose commit is not recorded, as Spark does."""
        options = {"path": str(folder / "target"), "writeId": "w"}
        given = sink_columns.parse_options(options, stream=True)
        found = [raw.body for raw in log_of(folder / "source")]
        for number in range(3):
            recorded = folder / f"committed-{number}"
            if recorded.exists():
                continue
            writer = store_writers.StreamWriter(given, given.staging / uuid.uuid4().hex)
            part = found[number * MESSAGES // 3 : (number + 1) * MESSAGES // 3]
            writer.commit([_staged(writer, part), None], number)
            recorded.touch()

    def check(self, folder: Path) -> None:
        sound(folder / "target")
        wanted = [raw.body for raw in log_of(folder / "source")]
        same(wanted, bodies(folder / "target", "sunk"), self.name)
        same([b"old"], bodies(folder / "target", "before"), self.name)


class StreamToFiles(Job):
    """A stream from a store to the files of Spark's own sink."""

    name = "stream to files"

    def run(self, spark: Any, folder: Path) -> None:
        query = (
            _followed(spark, folder)
            .select("body")
            .writeStream.option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "rows"), format="parquet")
        )
        query.awaitTermination()

    def check(self, folder: Path) -> None:
        found: list[bytes] = []
        for batch in (folder / "rows" / "_spark_metadata").glob("[0-9]*"):
            for line in batch.read_text().splitlines()[1:]:
                path = Path(json.loads(line)["path"].removeprefix("file://"))
                found += pq.read_table(path).column("body").to_pylist()
        same((raw.body for raw in log_of(folder / "source")), found, self.name)


WITHOUT_SPARK: dict[str, Job] = {
    job.name: job
    for job in (
        Archive("parquet"),
        Archive("delta"),
        Archive("iceberg"),
        Replay(),
        Restore(),
        Rebuild(),
        RebuildInPlace(),
        Sink(),
        Stream(),
    )
}
"""The jobs that can run in one process."""
ON_SPARK_ONLY = ("sink", "stream", "stream to files")
"""The jobs in which Spark's own process does a part of the work or keeps files."""
JOBS = WITHOUT_SPARK | {"stream to files": StreamToFiles()}


# -- what they share ------------------------------------------------------------------------------


@contextmanager
def _set(module: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _begin(root: Path) -> None:
    with Store.open(root, small_config()) as store:
        store.put(Message("before", b"old"))


def _staged(writer: Any, rows: Iterable[Any]) -> Any:
    found = [row if isinstance(row, bytes) else b"%d" % row for row in rows]
    batch = pa.RecordBatch.from_pydict({"topic": ["sunk"] * len(found), "body": found})
    return writer.write(iter([batch]))


def _followed(spark: Any, folder: Path) -> Any:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(MESSAGES // 3)}
    return spark.readStream.format("rocketmq").options(**options).load(str(folder / "source"))
