"""The runner of the tasks of a table: Spark, or the driver if there is little to do."""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from firetrail.pipeline.tables.files.library_errors import naming_table
from firetrail.pipeline.tasks import OnPlan, run_tasks

SparkProvider = SparkSession | Callable[[], SparkSession]


class TaskRunner:
    """Runs the tasks of a run.

    Args:
        spark: The session, or a function that returns one, which is called when there is work.
        place: Folder of the table, which errors name.
        on_plan: As for :func:`~firetrail.pipeline.table`.
    """

    def __init__(self, spark: SparkProvider, place: str, on_plan: OnPlan) -> None:
        self._spark = spark
        self._name = f"table {place}"
        self._on_plan = on_plan

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], inline: bool) -> Any:
        """Apply a function to each task and return the results; ``inline`` means in the driver."""
        if inline or not tasks:
            return [function(task) for task in tasks]
        spark = self._spark if isinstance(self._spark, SparkSession) else self._spark()
        progress = self._on_plan(len(tasks))
        named = naming_table(function, self._name)
        return run_tasks(spark, named, tasks, name=self._name, progress=progress)
