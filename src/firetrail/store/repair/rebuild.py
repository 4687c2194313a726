"""Consume queues and index files from the log alone.

The derivation is that of the live dispatcher, so the files are identical byte for byte (index files
are named after the time of their creation, in all programs that create them).
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import QueueGapError, StoreDamagedError, StoreError
from firetrail.format.columns import Check, Stop
from firetrail.format.files.index import IndexGeometry
from firetrail.format.values.delay import DelayLevels
from firetrail.storage.segment import Segment
from firetrail.store.dispatch.derivation import (
    Derivation,
    DerivedRun,
    DerivePolicy,
    Deriver,
    Step,
    note_runs,
)
from firetrail.store.evidence.catalog import Catalog
from firetrail.store.index.index import Index
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.inspect.view import StoreView
from firetrail.store.queues.generations import OmittedMessages, QueueGenerations
from firetrail.store.queues.queue_table import QueueTable
from firetrail.store.root.new_folder import built
from firetrail.system import System

REMEDY = "nothing was created; see what is damaged with 'firetrail fsck'"


class RebuildResult(NamedTuple):
    """The result of a rebuild."""

    messages: int
    queues: int
    index_files: int
    left_out: tuple[OmittedMessages, ...] = ()
    """Messages of the log that are in none of the queues."""

    def as_json(self) -> dict[str, object]:
        """Return everything in a form for scripts."""
        return self._asdict() | {"left_out": [each._asdict() for each in self.left_out]}


def rebuild(
    view: StoreView,
    target: Path,
    delays: DelayLevels,
    on_progress: Callable[[int], None] = lambda done: None,
) -> RebuildResult:
    """Create ``consumequeue/`` and ``index/`` in ``target``, which must be empty or absent.

    ``target`` is complete or does not exist, see
    :func:`~firetrail.store.root.new_folder.built`. ``on_progress`` is called with the number
    of bytes of the log that are done. Raises StoreDamagedError if the log cannot be followed to its
    end. A message whose body is damaged does not matter, because nothing is derived from bodies.
    """
    with built(view.system.files, target) as building:
        return _build(view, building, delays, on_progress)


def check_outside(root: Path, target: Path) -> None:
    """Raise StoreError if ``target`` is inside the store, which is only read."""
    if target.resolve().is_relative_to(root.resolve()):
        raise StoreError(f"{target}: inside the store, which is only read; choose another folder")


def _build(
    view: StoreView, folder: Path, delays: DelayLevels, on_progress: Callable[[int], None]
) -> RebuildResult:
    system: System = view.system
    queues = QueueTable(system, folder, view.queue_file_size)
    geometry = IndexGeometry(view.config.index_slots, view.config.index_entries)
    index = Index(system, folder, geometry)
    tags = has_tag_entries(view.index, view.log) or False
    light = view.queues.may_lack_light_queues
    catalog = view.catalog()
    policy = DerivePolicy(delays, light, tags, wants=partial(_wants, catalog))
    deriver = Deriver(queues, index, policy)
    steps = deriver.steps(without_gap(view), view.log.min_offset, view.end, Check.NONE)
    try:
        messages = _follow(view, steps, lambda step, done: on_progress(done))
        for key in deriver.generations.absent(catalog):
            queues.remove_queue(*key)
        queues.flush()
        if index.files:
            index.flush()
        left_out = deriver.generations.left_out(catalog)
        return RebuildResult(messages, len(queues.pairs()), len(index.files), left_out)
    except QueueGapError as error:
        # A queue cannot append a message because the previous one is not in the log.
        assert error.physical_offset is not None
        raise damage_at(view, error.physical_offset, error.detail) from error
    finally:
        queues.close()
        index.close()


def _wants(catalog: Catalog, run: DerivedRun) -> bool:
    return run.topic not in catalog.batches


def _follow(view: StoreView, steps: Iterable[Step], on_step: Callable[[Step, int], None]) -> int:
    """Take all steps over the log; return the number of its messages."""
    begin = position = view.log.min_offset
    messages = 0
    for step in steps:
        messages += step.rows
        position = step.segment.base + step.position
        if step.stop is Stop.BLANK:
            position = step.segment.base + view.log.segment_size
        on_step(step, position - begin)
    if position < view.end:
        raise damage_at(view, position, "no good record here, so the log cannot be read further")
    return messages


def find_left_out(view: StoreView, delays: DelayLevels) -> tuple[OmittedMessages, ...]:
    """Return the messages that a rebuild would leave out; raises the errors of a rebuild."""
    catalog, generations = view.catalog(), QueueGenerations()
    light = view.queues.may_lack_light_queues
    policy = DerivePolicy(delays, light, wants=partial(_wants, catalog))
    derivation = Derivation(policy, keys=False)
    steps = derivation.derive_all(without_gap(view), view.log.min_offset, view.end, Check.NONE)
    _follow(view, steps, lambda step, done: note_runs(step.runs, generations))
    return generations.left_out(catalog)


def without_gap(view: StoreView) -> list[Segment]:
    """Return the files of the log up to the first one that is missing or too short."""
    found: list[Segment] = []
    for segment in view.log.segments:
        if found and segment.base != found[-1].base + view.log.length_of(found[-1]):
            break
        found.append(segment)
    return found


def damage_at(view: StoreView, offset: int, detail: str) -> StoreDamagedError:
    """Return the error that says why and where nothing can be rebuilt."""
    segment = view.log.find(offset) or view.log.following(offset) or view.log.segments[-1]
    position = max(offset - segment.base, 0)
    return StoreDamagedError(str(segment.path), position, offset, detail, REMEDY)
