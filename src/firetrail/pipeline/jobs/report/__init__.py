"""``firetrail pipeline report``: what is in a store, on one page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from firetrail.pipeline.jobs.report.figures import Figures
from firetrail.pipeline.jobs.report.gather import gather_figures
from firetrail.pipeline.jobs.report.page import render

__all__ = ["Figures", "report"]


def report(spark: SparkSession, store: str | Path, out: str | Path) -> Figures:
    """Write the report of a store to the file ``out``; the figures in it.

    The store may be in use. Damage is left out of the figures and told in a section of its own.
    """
    figures = gather_figures(spark, Path(store).absolute())
    text = render(figures, datetime.now(UTC))
    Path(out).write_text(text, encoding="utf-8")
    return figures
