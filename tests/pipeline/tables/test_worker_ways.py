"""Tables of every kind of message that workers write, and the driver: they are the same."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.rules.table_ways import CASES, Ways, stores_of
from tests.rules.test_table_ways import no_spark

from firetrail.pipeline.tables.runs import retry_job, table_job


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_table_on_workers(
    spark: SparkSession, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = stores_of(CASES[name], tmp_path)
    first = Ways(CASES[name], stores, tmp_path / "first", no_spark)
    monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
    monkeypatch.setattr(retry_job, "INLINE_BYTES", 0)
    workers = Ways(CASES[name], stores, tmp_path / "workers", spark)
    assert workers.results == first.results
    assert workers.rows() == first.rows()
