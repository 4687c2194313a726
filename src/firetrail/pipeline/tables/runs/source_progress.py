"""The progress of a broker after a run, and a check that the run read what was planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from firetrail.errors import DataLostError, PipelineError
from firetrail.pipeline.tables.messages.broker_progress import (
    BrokerProgress,
    NewestMessage,
    Span,
    lost_between,
)
from firetrail.pipeline.tables.messages.table_sources import SourcePlan


class ReadResult(Protocol):
    """What a task has read."""

    @property
    def broker(self) -> str: ...

    @property
    def spans(self) -> list[Span]: ...

    @property
    def anchor(self) -> NewestMessage | None: ...


def progress_after(
    topic: str,
    before: BrokerProgress,
    plan: SourcePlan,
    results: Sequence[ReadResult],
    *,
    allow_gap: bool,
) -> BrokerProgress:
    """Return the progress of a broker after a run that read a plan.

    Raises:
        PipelineError: Not everything was read.
        DataLostError: Messages are missing, and ``allow_gap`` is not set.
    """
    place, own = str(plan.source), [r for r in results if r.broker == plan.source.broker]
    anchor = max(
        (result.anchor for result in own if result.anchor is not None),
        key=lambda found: found.physical_offset,
        default=None,
    )
    spans = [span for result in own for span in result.spans]
    try:
        after = before.extended(spans, plan.read_to, anchor)
    except ValueError as error:
        raise PipelineError(f"{place}: {error}, so nothing was added") from error
    lost = {span.queue_id: span for span in lost_between(before, after)}
    if plan.ranges is not None:
        known = before.ends()
        for queue_id, (begin, end) in plan.ranges.items():
            gap = lost.pop(queue_id, None)
            missing = 0 if gap is None else gap.end - gap.begin
            found = after.queues.get(queue_id)
            if found is None or found.end != end or missing != begin - known.get(queue_id, begin):
                raise PipelineError(
                    f"{place}: the offsets {begin} up to {end} of queue {queue_id} were not "
                    "all read, so nothing was added; run the job again"
                )
    elif lost and not allow_gap:
        gap = next(iter(lost.values()))
        raise DataLostError(
            f"{place}: {gap.end - gap.begin} messages of queue {gap.queue_id} of {topic} "
            f"after offset {gap.begin} are not in the archive, so nothing was added; read them "
            "from another source first, or continue with --allow-gap"
        )
    return after
