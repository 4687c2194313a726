"""The report job: shows the content of a store on one HTML page."""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from firetrail.pipeline.jobs.report.figure_queries import gather_figures
from firetrail.pipeline.jobs.report.figures import Figures
from firetrail.pipeline.jobs.report.report_page import render
from firetrail.system import SYSTEM

__all__ = ["Figures", "report"]


def report(spark: SparkSession, store: str | Path, out: str | Path) -> Figures:
    """Write a report about a store as one HTML page.

    The store may be in use. Damaged records are not part of the figures; the page lists them in a
    section of their own.

    Args:
        spark: The session to run on.
        store: Folder of the store. Every worker must reach it under the same path.
        out: HTML file to write; an existing file is replaced.

    Returns:
        The figures that the page shows.

    Raises:
        NotAStoreError: The folder is not a store.
        NotSharedError: A worker does not see the same store as the driver.
    """
    figures = gather_figures(spark, Path(store).absolute())
    text = render(figures, datetime.fromtimestamp(SYSTEM.clock.now_ms() / 1000, UTC))
    Path(out).write_text(text, encoding="utf-8")
    return figures
