"""Publications of runs, while others merge the files of the table (OPTIMIZE)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.pipeline.tables.test_kills import Killed
from tests.pipeline.tables.topics import ids, put, rows, table

from firetrail.errors import LakeError
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.retry_job import retry_table
from firetrail.pipeline.tables.runs.verification import verify_table

NARROW, WIDE = "id bigint, v decimal(4,2)", "v decimal(9,2)"
LARGE = 1000.5
Optimize = Callable[[], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def optimized(place: Path) -> Optimize:
    """Return a function that writes all files of a table again, as another program would."""
    return lambda: DeltaTable(str(place)).optimize.z_order(["_offset"])


@contextmanager
def before(owner: Any, name: str, action: Optimize) -> Iterator[None]:
    """Let something happen before the first call of a function, and after it has begun."""
    real = getattr(owner, name)

    def call(*args: Any, **more: Any) -> Any:
        setattr(owner, name, real)
        action()
        return real(*args, **more)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, real)


@contextmanager
def killed_before_the_commit(action: Optimize) -> Iterator[None]:
    def kill() -> None:
        raise Killed

    with before(DeltaTable, "create_write_transaction", kill), pytest.raises(Killed):
        yield
    action()


def while_it_publishes(action: Optimize) -> Any:
    return before(Publication, "publish", action)


def while_it_commits(action: Optimize) -> Any:
    return before(DeltaTable, "create_write_transaction", action)


MOMENTS = pytest.mark.parametrize(
    "moment", [killed_before_the_commit, while_it_publishes, while_it_commits]
)


@MOMENTS
def test_buckets_that_are_merged_by_others(root: Path, to: Path, moment: Any) -> None:
    put(root, *({"id": number, "v": 0} for number in range(20)))
    table(root, to, upsert="id", buckets=2)
    put(root, {"id": 3, "v": 1}, {"id": 20, "v": 1})
    with moment(optimized(to)):
        table(root, to)
    assert table(root, to).total_rows == 21
    assert {row["id"]: row["v"] for row in rows(to)} == dict.fromkeys(range(20), 0) | {3: 1, 20: 1}
    assert len(rows(to)) == 21
    assert verify_table(root, to).ok
    assert "OPTIMIZE" in {commit["operation"] for commit in DeltaTable(str(to)).history()}


@MOMENTS
def test_rejected_messages_that_are_merged_by_others(root: Path, to: Path, moment: Any) -> None:
    for number in range(3):
        put(root, {"id": number, "v": LARGE}, b"{")
        table(root, to, schema=NARROW if number == 0 else None)
    with moment(optimized(to.with_name("orders__rejected"))):
        retry_table(_no_spark, to, schema=WIDE)
    retry_table(_no_spark, to)
    assert sorted(ids(to)) == [0, 1, 2]
    assert len(rows(to.with_name("orders__rejected"))) == 3
    assert verify_table(root, to).ok


@MOMENTS
def test_files_that_are_written_again_and_merged_by_others(
    root: Path, to: Path, moment: Any
) -> None:
    put(root, {"id": 0, "by": {"a": 1}})
    table(root, to)
    put(root, {"id": 1, "by": {"b": 2}})
    with moment(optimized(to)):
        table(root, to)
    table(root, to)
    assert ids(to) == [0, 1]


def test_files_that_are_merged_again_and_again(root: Path, to: Path) -> None:
    """The commit fails, but the next run completes it."""
    put(root, {"id": 0, "v": 0}, {"id": 1, "v": 0})
    table(root, to, upsert="id", buckets=1)
    put(root, {"id": 1, "v": 1})
    real = DeltaTable.create_write_transaction

    def late(*args: Any, **more: Any) -> None:
        optimized(to)()
        real(*args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", late)
        with pytest.raises(LakeError, match=r"the commit failed \(.*run the job again"):
            table(root, to)
    assert table(root, to).messages == 0
    assert {row["id"]: row["v"] for row in rows(to)} == {0: 0, 1: 1}


def test_a_change_by_others_while_a_run_works(root: Path, to: Path) -> None:
    put(root, {"id": 0, "v": 0}, {"id": 1, "v": 0})
    table(root, to, upsert="id", buckets=1)
    put(root, {"id": 1, "v": 1})
    with (
        while_it_publishes(lambda: DeltaTable(str(to)).delete("id = 0")),
        pytest.raises(LakeError, match=r"\(DELETE\) is not a commit of this job"),
    ):
        table(root, to)
    assert [row["id"] for row in rows(to)] == [1]  # as the other one left it


def _no_spark() -> Any:
    raise AssertionError("little work needs no Spark")
