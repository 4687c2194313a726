"""Rounds of the table job, one after another, which keep a table close to its topic.

Brokers and name servers may be away for a while. After the first round, which shows that the
sources are right, the rounds wait for them as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from firetrail.errors import OutageError
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.tables.runs.table_job import table
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
    on_round: Callable[[Any], None] = lambda done: None,
    run: Callable[..., Any] = table,
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
        run: The job of a round. Default: :func:`~firetrail.pipeline.table`.
        **options: Arguments of :func:`~firetrail.pipeline.table`.

    Raises:
        FiretrailError: As a run does, also OutageError in the first round.
    """
    number = 0
    is_reached = False
    while rounds is None or number < rounds:
        begun = SYSTEM.clock.monotonic()
        number += 1
        try:
            done = run(spark, source, topic, to, **options)
        except OutageError as error:
            if not is_reached:
                raise
            LOGGER.warning("%s; trying again", error)
        else:
            is_reached = True
            if done.messages or done.lost:
                on_round(done)
            if every_s is None:
                every_s = KEYED_EVERY_S if done.key else EVERY_S
        if number != rounds and every_s:
            SYSTEM.clock.sleep_ms(round(1000 * max(begun + every_s - SYSTEM.clock.monotonic(), 0)))
