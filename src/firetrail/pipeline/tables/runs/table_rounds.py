"""Rounds of the table job, one after another, which keep a table close to its topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from firetrail.pipeline.tables.runs.table_job import table
from firetrail.pipeline.tables.runs.table_result import TableResult
from firetrail.pipeline.tables.runs.task_runner import SparkProvider
from firetrail.system import SYSTEM

EVERY_S = 1.0
"""Default of the time from the start of one round to the start of the next."""
KEYED_EVERY_S = 60.0
"""The same for a table with a key, of which each round writes a large part again."""


def follow_table(
    spark: SparkProvider,
    source: str | Path | Sequence[str | Path],
    topic: str,
    to: str | Path,
    *,
    every_s: float | None = None,
    rounds: int | None = None,
    on_round: Callable[[TableResult], None] = lambda done: None,
    **options: Any,
) -> None:
    """Add new messages repeatedly.

    Args:
        spark: The session to run on, or a function that returns one.
        source: The sources.
        topic: The topic.
        to: Folder of the table.
        every_s: Seconds from the start of one round to the start of the next. None, the default,
            is 1, and 60 for a table with a key.
        rounds: Stop after this many rounds; None, the default, continues until interrupted.
        on_round: Called with the result of each round that read messages.
        **options: Arguments of :func:`~firetrail.pipeline.table`.
    """
    number = 0
    while rounds is None or number < rounds:
        begun = SYSTEM.clock.monotonic()
        done = table(spark, source, topic, to, **options)
        if done.messages or done.lost:
            on_round(done)
        number += 1
        if every_s is None:
            every_s = KEYED_EVERY_S if done.key else EVERY_S
        if number != rounds:
            SYSTEM.clock.sleep_ms(round(1000 * max(begun + every_s - SYSTEM.clock.monotonic(), 0)))
