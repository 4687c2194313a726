"""An audit with Spark: findings as tables, the page, stores in use; ``test_audit_agrees`` has the
rest."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.helpers import put_all, small_config
from tests.store.checks import LOG, checked
from tests.stores import LIGHT, copy_of, flip, log_file, overwrite, records, state

from firetrail import Message, Store
from firetrail.errors import NotAStoreError
from firetrail.pipeline.jobs.audit.audit_job import audit, work_folder
from firetrail.pipeline.jobs.audit.audit_page import render
from firetrail.store.problems import Problem, ProblemKind


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store with damage in log, queue and index, and across the border of two log files."""
    root = copy_of("v4-rolled", tmp_path)
    offsets = [record.physical_offset for record in records(root)]
    last_of_first = max(offset for offset in offsets if offset < 8192)
    for offset in (offsets[3], last_of_first, 8192):
        path, at = log_file(root, offset)
        flip(path, at + 4)
    path, at = log_file(root, offsets[150])
    flip(path, at + 90)
    overwrite(root / "consumequeue" / "T1" / "0" / f"{2000:020}", 20, bytes(40))
    flip(root / "index" / "20261115070106180", 60)
    return root


def test_findings_are_those_of_fsck(damaged: Path, tmp_path: Path, spark: SparkSession) -> None:
    before = state(damaged)
    result = audit(spark, damaged, work=tmp_path / "work")
    assert not result.ok
    report = checked(damaged)
    assert sorted(result.report.problems) == sorted(report.problems)
    rows = result.findings.collect()
    assert {row.severity for row in rows} == {"problem"}
    assert sorted((row.file, row.offset, row.kind) for row in rows) == sorted(
        (problem.file, problem.offset, problem.kind) for problem in report.problems
    )
    tables = result.tables()
    assert list(tables) == ["record-magic", "body-crc", "unit-missing", "index-slot"]
    (missing,) = tables["unit-missing"].collect()
    assert (missing.file, missing.offset) == (f"consumequeue/T1/0/{2000:020}", 20)
    assert state(damaged) == before
    assert list((tmp_path / "work").iterdir()) == []


def test_damage_from_one_file_into_the_next_is_one_finding(
    damaged: Path, spark: SparkSession
) -> None:
    magic = [p for p in audit(spark, damaged).report.problems if p.kind is ProblemKind.RECORD_MAGIC]
    assert [problem.file for problem in magic] == [LOG, LOG]
    assert "the next good record is at 83" in magic[1].detail


def test_a_sound_store_has_no_findings(tmp_path: Path, spark: SparkSession) -> None:
    result = audit(spark, copy_of("v5-clean", tmp_path))
    assert result.ok
    assert result.report == checked(tmp_path / "v5-clean")
    assert result.findings.count() == 0 and result.tables() == {}


def test_light_queues_are_checked(tmp_path: Path, spark: SparkSession) -> None:
    root = copy_of(LIGHT, tmp_path)
    result = audit(spark, root)
    assert result.ok and result.report == checked(root)
    shutil.rmtree(root / "consumequeue/%LMQ%b")
    (root / "abort").unlink()
    result = audit(spark, root)
    assert not result.ok and result.report == checked(root)


def test_a_store_in_use_can_be_audited(tmp_path: Path, spark: SparkSession) -> None:
    with Store.open(tmp_path / "s", small_config(log=2048)) as store:
        put_all(store, [b"x"] * 50, keys=["k"])
        report = audit(spark, tmp_path / "s").report
        assert report.ok and not report.warnings
        assert (report.state, report.messages) == ("open", 50)
        store.put(Message("T", b"more"))


def test_a_folder_that_is_not_a_store_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(NotAStoreError):
        audit(spark, tmp_path)


def test_leftovers_of_a_killed_audit_are_removed(tmp_path: Path, spark: SparkSession) -> None:
    root = copy_of("v4-rolled", tmp_path)
    left = work_folder(root, tmp_path)
    (left / "folder").mkdir(parents=True)
    (left / "1234.units").touch()
    assert audit(spark, root, work=tmp_path).ok
    assert list(tmp_path.iterdir()) == [root]


def test_a_work_folder_that_is_a_file_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    root = copy_of("v4-clean", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        audit(spark, root, work=tmp_path / "file")


class TestPage:
    NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)

    def test_a_sound_store_is_shown_as_sound(self, tmp_path: Path) -> None:
        page = render(checked(copy_of("v4-clean", tmp_path)), self.NOW)
        assert "Sound." in page and "Firetrail audit" in page and "2026-11-15 12:00 UTC" in page

    def test_findings_are_listed_and_escaped(self, damaged: Path) -> None:
        report = checked(damaged)
        report.problems[0] = report.problems[0]._replace(detail="<script>")
        page = render(report, self.NOW)
        for text in ("record-magic", "unit-missing", "index-slot", "&lt;script&gt;", "<svg"):
            assert text in page
        assert "<script>" not in page.split("</main>")[0]

    def test_findings_beyond_the_limit_are_counted(self, tmp_path: Path) -> None:
        report = checked(copy_of("v4-clean", tmp_path))
        report.problems += [Problem(LOG, n, n, ProblemKind.BODY_CRC, "x") for n in range(300)]
        report.problems_omitted = 5
        page = render(report, self.NOW)
        assert "300 problems, of which the first 200 are listed" in page
        assert "5 more findings were counted" in page
        assert page.count("<tr><td") == 200
