"""The choice of a format: options that contradict it, and libraries that are missing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tables.formats import in_all_formats
from tests.pipeline.tables.topics import put, table

from firetrail.errors import ConfigError, MissingExtraError
from firetrail.pipeline.tables.runs.explanation import explain_table
from firetrail.pipeline.tables.runs.table_status import table_status


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path / "data", {"id": 0})
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def test_a_format_that_does_not_exist(root: Path, to: Path) -> None:
    with pytest.raises(ConfigError, match=r"format = 'orc': must be one of delta, iceberg, parqu"):
        table(root, to, format="orc")


def test_the_format_of_a_table_stays(root: Path, to: Path) -> None:
    table(root, to, format="parquet")
    with pytest.raises(ConfigError, match=r"format.* the table was made with 'parquet'"):
        table(root, to, format="iceberg")
    assert table_status(to).options["format"] == "parquet"


def test_a_table_without_a_format_is_delta(root: Path, to: Path) -> None:
    """Its manifest is older than the option."""
    table(root, to)
    path = to / "_firetrail" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["options"]["format"], manifest["options"]["catalog"]
    path.write_text(json.dumps(manifest))
    put(root, {"id": 1})
    assert table(root, to, format="delta").total_rows == 2


@in_all_formats
def test_a_dry_run_writes_nothing(root: Path, to: Path, table_format: str) -> None:
    found = explain_table(_no_spark, root, "orders", to, format=table_format)
    assert (found.rows, found.is_new, to.exists()) == (1, True, False)
    table(root, to, schema="id int")
    before = {path: path.read_bytes() for path in to.rglob("*") if path.is_file()}
    put(root, {"id": 1 << 40})
    found = explain_table(_no_spark, root, "orders", to)
    assert found.changes == ("column id is int, becomes bigint",)
    assert found.rewritten_files == (0 if table_format == "iceberg" else 1)
    assert {path: path.read_bytes() for path in to.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("kind", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_library_that_is_missing(
    root: Path, to: Path, kind: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"needs {library}: pip install 'firetrail\[spark"):
        table(root, to, format=kind)


def _no_spark() -> Any:
    raise AssertionError("little work needs no Spark")
