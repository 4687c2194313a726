"""The pipeline's benchmarks run; their measurements are not asserted."""

from pathlib import Path

import pytest
from benchmarks import plans, spark_jobs
from benchmarks.start import fill
from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "store"
    fill(str(folder), 200_000, {"mappedFileSizeCommitLog": str(1 << 20)})
    return folder


@pytest.mark.parametrize(
    "name", ["spark_scans", "spark_archive", "spark_rebuild", "spark_key", "spark_pruning"]
)
def test_every_measurement_runs(
    name: str, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    arguments = {}
    if name == "spark_key":
        keys = tmp_path / "keys"
        keys.write_text("key-7 key-9", encoding="utf-8")
        arguments["keys_file"] = str(keys)
    figures = getattr(spark_jobs, name)(str(folder), rounds=0, **arguments)
    assert all(value > 0 for value in figures.values())
    assert list(folder.parent.iterdir()) == [folder], "all other files are removed"


def test_planning_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_DROP_CACHES", tmp_path)  # which cannot be written to
    folder = str(tmp_path / "store")
    assert plans.spark_fill_queues(folder, topics=3) == {"queues": 12}
    figures = plans.spark_planning(folder, rounds=0)
    assert set(figures) == {"all_cold", "all_warm", "one_cold", "one_warm"}
    assert all(value > 0 for value in figures.values())
