"""The rebuild job: derives consume queues and index files from the log alone, with Spark tasks.

1. Tasks over the files of the log, or parts of large ones, derive units and index entries with the
   functions of the live dispatcher and stage them in files.
2. The driver arranges the staged pieces: the file and position of every unit and entry follow from
   their numbers alone.
3. Tasks write the queue files and the index files, and sync them.
4. The driver moves the files of the successful tasks into one folder and renames it to the target.

Every attempt at a task writes to files of its own. So an attempt does no harm if it is killed, or
if Spark takes it for dead while it continues. Until the last step only ``<target>.building``
exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from firetrail.errors import StoreError
from firetrail.format.columns import Stop
from firetrail.format.files.index import IndexGeometry
from firetrail.format.names import INDEX
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.pipeline.jobs.rebuild.arrangement import index_files, queue_files, shared_out
from firetrail.pipeline.jobs.rebuild.assembly import (
    AssembledFiles,
    Assembly,
    IndexFiles,
    QueueFiles,
    assemble,
)
from firetrail.pipeline.jobs.rebuild.derivation_task import DerivedPart, DeriveTask, derive
from firetrail.pipeline.source.plan.fingerprint import fingerprint_of
from firetrail.pipeline.source.plan.log_splits import record_from
from firetrail.pipeline.tasks import run_tasks
from firetrail.pipeline.workers import check_arrived, make_shared
from firetrail.storage.segment import Segment
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.inspect.log_tail import check_end
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.queues.generations import QueueGenerations
from firetrail.store.repair.rebuild import RebuildResult, check_outside, damage_at, without_gap
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.store.root.new_folder import built
from firetrail.system import SYSTEM, Files

PARTS_PER_SLOT = 2
"""Parts of the log per slot, unless they would be smaller than PART_BYTES_MIN."""
PART_BYTES_MIN = 32 << 20
PIECES = "pieces"
PARTS = "parts"


def rebuild(
    spark: SparkSession,
    store: str | Path,
    into: str | Path | None = None,
    *,
    delays: DelayLevels | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> RebuildResult:
    """Rebuild the consume queues and the index of a store from its log.

    Args:
        spark: The session to run on.
        store: Folder of the store. Every worker must reach it under the same path.
        into: New or empty folder for the rebuilt files, which every worker must reach under the
            same path, too. The store is then only read and may be in use. None, the default,
            replaces the queues and the index of the store, which must be closed; the old ones are
            kept in its folder ``repair-<time>``.
        delays: The broker's delay levels; RocketMQ's defaults if None.
        on_progress: Called with the number of bytes of the log that are processed.

    Returns:
        The numbers of messages, queues and index files, and of messages that were left out.

    Raises:
        StoreDamagedError: The log cannot be read to its end. Nothing has changed.
        StoreError: Without ``into``: the store is open or was not closed.
        NotSharedError: A worker does not see the same folders as the driver.
        DiskFullError: There is too little space for the staged files.
    """
    delays = delays or DelayLevels.parse(DEFAULT_DELAY_LEVELS)
    root = Path(store).absolute()
    if into is not None:
        target = Path(into).absolute()
        check_outside(root, target)
        with StoreView.open(root) as view:
            check_end(view)
            return make(spark, view, target, delays, on_progress)
    rebuilt: list[RebuildResult] = []

    def make_closed(view: StoreView, target: Path, delays: DelayLevels) -> RebuildResult:
        if view.state is not StoreState.CLOSED:
            raise StoreError(
                f"{root}: was not closed; open it once, which recovers it, or rebuild into another "
                "folder"
            )
        rebuilt.append(make(spark, view, target, delays, on_progress))
        return rebuilt[-1]

    repair_store(SYSTEM, root, Repair.REBUILD_DERIVED, delays, make_closed)
    return rebuilt[-1]


def make(
    spark: SparkSession,
    view: StoreView,
    target: Path,
    delays: DelayLevels,
    on_progress: Callable[[int], None],
) -> RebuildResult:
    """Do the work of :func:`firetrail.store.repair.rebuild.rebuild` with Spark tasks."""
    files = view.system.files
    with built(files, target.absolute()) as building:
        pieces, parts = make_shared(building, PIECES), make_shared(building, PARTS)
        derived = _derive(spark, view, pieces, delays, on_progress)
        staged = [part.staged for part in derived]
        geometry = IndexGeometry(view.config.index_slots, view.config.index_entries)
        catalog, generations = view.catalog(), QueueGenerations()
        wanted: list[QueueFiles | IndexFiles] = [
            *queue_files(view, staged, catalog, generations),
            *index_files(staged, geometry, view.system.clock.now_ms()),
        ]
        slots = spark.sparkContext.defaultParallelism
        tasks = [Assembly(str(parts), group) for group in shared_out(wanted, slots)]
        assembled = run_tasks(spark, assemble, tasks, name="rebuild: writing queues and index")
        queues, index = _gather(files, building, assembled)
        files.remove_tree(pieces)
        files.remove_tree(parts)
    messages = sum(part.messages for part in derived)
    return RebuildResult(messages, queues, index, generations.left_out(catalog))


def _derive(
    spark: SparkSession,
    view: StoreView,
    folder: Path,
    delays: DelayLevels,
    on_progress: Callable[[int], None],
) -> list[DerivedPart]:
    """Derive from the whole log; raise StoreDamagedError if it cannot be read to its end."""
    tags = has_tag_entries(view.index, view.log) or False
    tasks = [
        DeriveTask(
            root=str(view.root),
            fingerprint=fingerprint_of(view, start, end),
            path=str(segment.path),
            base=segment.base,
            size=segment.size,
            start=start,
            end=end,
            folder=str(folder),
            delays=delays,
            tags=tags,
            light=view.queues.may_lack_light_queues,
        )
        for segment, start, end in _parts(view, spark.sparkContext.defaultParallelism)
    ]
    sizes = [task.end - task.start for task in tasks]
    derived = run_tasks(
        spark,
        derive,
        tasks,
        name="rebuild: deriving",
        progress=lambda done: on_progress(sum(sizes[:done])),
    )
    results: list[DerivedPart] = []
    position = view.log.min_offset
    for task, part in zip(tasks, derived, strict=True):
        if task.start > position:
            break
        if task.start < position:
            continue  # it began at what only looked like a record, or after the file's end
        last = min(task.base + task.size, view.end)
        if part.position < task.end < last and part.stop is not Stop.BLANK:
            rest = [task._replace(end=last)]
            (part,) = run_tasks(spark, derive, rest, name="rebuild: the rest of a file")
        results.append(part)
        position = part.position
        if part.stop is Stop.BLANK:
            position = task.base + view.log.segment_size
    if position < view.end:
        raise damage_at(view, position, "no good record here, so the log cannot be followed")
    return results


def _parts(view: StoreView, slots: int) -> Iterator[tuple[Segment, int, int]]:
    """Yield the files of the log with a start and end offset; large files in several parts."""
    wanted = (view.end - view.log.min_offset) // (slots * PARTS_PER_SLOT)
    size = max(wanted, PART_BYTES_MIN)
    for segment in without_gap(view):
        end = min(segment.base + segment.size, view.end)
        start = segment.base
        while start < end:
            cut = record_from(view, start + size) if end - start > size * 3 // 2 else end
            yield segment, start, min(cut, end)
            start = cut


def _gather(files: Files, building: Path, assembled: list[AssembledFiles]) -> tuple[int, int]:
    """Move the files of all tasks into one folder, durably; return (queues, index files)."""
    folders: dict[Path, int] = {}
    for part in assembled:
        for name, size in part.files:
            path, written_path = building / name, Path(part.folder) / name
            check_arrived(written_path, size, part.worker)
            if path.parent not in folders:
                path.parent.mkdir(parents=True, exist_ok=True)
            folders[path.parent] = folders.get(path.parent, 0) + 1
            written_path.rename(path)
    for folder in sorted({folder for path in folders for folder in (path, *path.parents)}):
        if folder.is_relative_to(building):
            files.sync_folder(folder)
    index = folders.pop(building / INDEX, 0)
    return len(folders), index
