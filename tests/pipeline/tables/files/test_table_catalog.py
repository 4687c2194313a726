"""Iceberg tables in catalogs: SQL, Glue and REST, as PyIceberg is configured for them."""

import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from pyiceberg import catalog as catalogs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config
from tests.pipeline.tables.files.rest_catalog import RestCatalogServer
from tests.pipeline.tables.test_kills import killed_before
from tests.pipeline.tables.topics import Row, put, table

from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.tables.runs.retry_job import retry_table
from firetrail.pipeline.tables.runs.table_status import table_status
from firetrail.pipeline.tables.runs.verification import verify_table

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NAME = "lake.shop.orders"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture(params=["sql", "glue", "rest"])
def configured(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Configure PyIceberg for a catalog named ``lake``, as its environment variables do."""
    kind: str = request.param
    given = {"TYPE": kind}
    with mock_aws(), RestCatalogServer(tmp_path / "rest.db").serving() as server:
        if kind == "sql":
            given["URI"] = f"sqlite:///{tmp_path / 'catalog.db'}"
        elif kind == "rest":
            given["URI"] = server.url
        else:
            given |= {"GLUE__REGION": "us-east-1", "GLUE__ACCESS_KEY_ID": "a"}
            given["GLUE__SECRET_ACCESS_KEY"] = "b"
        for name, value in given.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
        monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
        yield kind


def rows(name: str = "shop.orders") -> list[Row]:
    """Return the rows of a table, as somebody finds them who only knows its name."""
    with load_catalog("lake") as catalog:
        found: list[Row] = catalog.load_table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["_physical_offset"])


def in_catalog(source: Path, to: Path, **options: Any) -> Any:
    return table(source, to, **{"format": "iceberg", "catalog": NAME, **options})


def test_a_table_by_its_name(root: Path, to: Path, configured: str) -> None:
    put(root, {"id": 0}, b"{")
    assert in_catalog(root, to).rows == 1
    put(root, {"id": 1, "new": {"a": 1}})
    assert table(root, to).rows == 1
    assert [(row["id"], row["new"]) for row in rows()] == [(0, None), (1, {"a": 1})]
    assert [row["body"] for row in rows("shop.orders__rejected")] == [b"{"]
    assert verify_table(root, to).ok
    assert table_status(to).options["catalog"] == NAME
    assert retry_table(_no_spark, to).rejected == 1


def test_an_upsert(root: Path, to: Path, configured: str) -> None:
    for version in range(3):
        put(root, *({"id": number, "v": version} for number in range(version, 4)))
        in_catalog(root, to, upsert="id", buckets=2)
    assert {row["id"]: row["v"] for row in rows()} == {0: 0, 1: 1, 2: 2, 3: 2}


def test_a_commit_of_somebody_else(root: Path, to: Path, configured: str) -> None:
    put(root, {"id": 0}, {"id": 1})
    in_catalog(root, to)
    with load_catalog("lake") as catalog:
        catalog.load_table("shop.orders").delete("id = 0")
    put(root, {"id": 2})
    with pytest.raises(LakeError, match=r"\((delete|overwrite)\) is not a commit of this job"):
        table(root, to)
    with load_catalog("lake") as catalog:
        catalog.drop_table("shop.orders")
    with pytest.raises(LakeError, match="the Iceberg table is missing"):
        table(root, to)


def test_a_name_that_is_taken(root: Path, to: Path, configured: str) -> None:
    put(root, {"id": 0})
    in_catalog(root, to)
    for _ in range(2):
        with pytest.raises(LakeError, match=r"other: is an Iceberg table that this job did not"):
            in_catalog(root, to.with_name("other"))
    assert not list(to.with_name("other").rglob("*.parquet"))
    assert len(rows()) == 1


@pytest.mark.parametrize("configured", ["sql"], indirect=True)
@pytest.mark.parametrize("committed", [False, True])
def test_a_run_that_is_killed_at_the_commit(
    root: Path, to: Path, configured: str, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, {"id": 0})
    in_catalog(root, to)
    put(root, {"id": 1, "new": 1})
    kind: Any = type(load_catalog("lake"))
    real = kind.commit_table

    def dies(self: Catalog, *args: Any) -> None:
        if committed:
            real(self, *args)
        self.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "commit_table", dies)
        with pytest.raises(KeyboardInterrupt):
            table(root, to)
    assert table(root, to).messages == 0
    assert [row["id"] for row in rows()] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("configured", ["sql"], indirect=True)
def test_a_run_that_is_killed_before_any_change(
    root: Path, to: Path, configured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, {"id": 0})
    in_catalog(root, to)
    change = 0
    while True:
        put(root, {"id": change + 1}, {"id": -1} if change % 2 else b"{")
        with killed_before(change, monkeypatch) as done:
            table(root, to)
        table(root, to)
        assert sorted({row["id"] for row in rows()} - {-1}) == list(range(change + 2))
        assert verify_table(root, to).ok
        if len(done) < change:
            break
        change += 1
    assert "new_output" in done


def test_a_catalog_that_is_not_configured(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    with pytest.raises(ConfigError, match=r"open the catalog 'none'; set its type and uri"):
        table(root, to, format="iceberg", catalog="none.a.b")
    for name in ("orders", "a.b", "a..b", "a.b."):
        with pytest.raises(ConfigError, match=r"must be CATALOG\.NAMESPACE\.TABLE"):
            table(root, to, format="iceberg", catalog=name)
    shutil.rmtree(to, ignore_errors=True)
    with pytest.raises(ConfigError, match="needs the format iceberg"):
        table(root, to, catalog="a.b.c")


def test_a_uri_that_pyiceberg_does_not_know(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__ODD__URI", "odd://me:the-secret@host/x")
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    put(root, {"id": 0})
    with pytest.raises(ConfigError, match="does not open the catalog 'odd'") as caught:
        table(root, to, format="iceberg", catalog="odd.a.b")
    assert "the-secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("configured", ["sql"], indirect=True)
def test_no_property_of_a_catalog_is_kept(
    root: Path, to: Path, configured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY", "the-secret")
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    put(root, {"id": 0})
    in_catalog(root, to)
    for path in to.rglob("*"):
        assert path.is_dir() or b"the-secret" not in path.read_bytes()


def _no_spark() -> Any:
    raise AssertionError("little work needs no Spark")
