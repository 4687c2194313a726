"""A table has the same rows in every way: merged or not, retried, found by queries or by scans.

``tests/pipeline/tables/test_worker_ways.py`` compares those of workers.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.rules.table_ways import CASES, Ways, stores_of

from firetrail.pipeline.tables.runs import publication


@pytest.mark.parametrize("name", CASES)
def test_a_table_in_the_driver(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = stores_of(CASES[name], tmp_path)
    first = Ways(CASES[name], stores, tmp_path / "first", no_spark)
    monkeypatch.setattr(publication, "MAINTAINED_EVERY", 1)
    monkeypatch.setattr(publication, "KEYED_MAINTAINED_EVERY", 1)
    merged = Ways(CASES[name], stores, tmp_path / "merged", no_spark)
    assert merged.results == first.results
    assert merged.rows() == first.rows()


def no_spark() -> Any:
    raise AssertionError("little work needs no Spark")
