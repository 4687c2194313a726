"""The folders in which tables can be."""

from pathlib import Path

import pytest
from tests.pipeline.tables.topics import put, table

from firetrail.errors import ConfigError
from firetrail.pipeline.jobs.archive.table_formats import DeltaFiles
from firetrail.pipeline.lakes.lake import Lake


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


@pytest.mark.parametrize("name", ["l%20k", "a[1]", "a|b", "a^b", "a\\b", "a\nb"])
def test_a_path_that_the_library_cannot_open(root: Path, tmp_path: Path, name: str) -> None:
    put(root, {"id": 0})
    for folder in (tmp_path / name, tmp_path / name / "orders"):
        with pytest.raises(ConfigError, match="the Delta library opens no path with"):
            table(root, folder)
    with pytest.raises(ConfigError, match="the Delta library opens no path with"):
        DeltaFiles(Lake(str(tmp_path / name)))
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["a b", "ü", "a#b?c=1", "100%", "q'\"*"])
def test_other_paths_are_opened(root: Path, tmp_path: Path, name: str) -> None:
    put(root, {"id": 0})
    to = tmp_path / name / name
    assert (table(root, to).rows, table(root, to).total_rows) == (1, 1)


def test_a_table_within_a_store_or_another_table(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    for place in (root / "config" / "orders", to / "more", to / "data" / "more"):
        if place.parent != root / "config":
            table(root, to)
        with pytest.raises(ConfigError, match=r"is in .*, which is a (store|table)"):
            table(root, place)
        assert not place.exists()
    with pytest.raises(ConfigError, match="names that end in __rejected are those of"):
        table(root, to.with_name("other__rejected"))
    assert table(root, to).total_rows == 1


def test_a_file_with_a_schema_is_found_from_any_folder(
    root: Path, to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, {"id": 0})
    (tmp_path / "columns.ddl").write_text("id int")
    monkeypatch.chdir(tmp_path)
    table(root, to, decoder_options={"schemaFile": "columns.ddl"})
    put(root, {"id": 1})
    monkeypatch.chdir("/")
    assert table(root, to).total_rows == 2
