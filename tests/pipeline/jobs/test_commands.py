"""``firetrail pipeline rebuild`` and ``audit``: arguments, words, JSON and exit codes.

They are not in ``tests/cli`` because all tests of the pipeline share a Spark session.
"""

# ruff: noqa: F811

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli.conftest import Firetrail, firetrail  # noqa: F401
from tests.stores import copy_of, derived, flip, state

from firetrail import Store


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> None:
    """Let the commands use the existing session."""


class TestRebuild:
    def test_rebuild_writes_into_another_folder(self, tmp_path: Path, firetrail: Firetrail) -> None:
        root = copy_of("v4-clean", tmp_path)
        result = firetrail("pipeline", "rebuild", root, "--into", tmp_path / "new")
        assert (result.code, result.err) == (0, "")
        assert result.out == f"{tmp_path / 'new'}: 7 queues and 1 index file of 21 messages\n"
        assert derived(tmp_path / "new") == derived(root)

    def test_rebuild_repairs_in_place(self, tmp_path: Path, firetrail: Firetrail) -> None:
        root = copy_of("v4-clean", tmp_path)
        before = derived(root)
        flip(root / "consumequeue" / "T1" / "0" / f"{0:020}", 3)
        result = firetrail("pipeline", "rebuild", root, "--json")
        assert (result.code, result.err) == (0, "")
        counts = {"messages": 21, "queues": 7, "index_files": 1}
        assert result.json == {"into": str(root), **counts, "left_out": []}
        assert derived(root) == before

    def test_a_damaged_log(self, tmp_path: Path, firetrail: Firetrail) -> None:
        root = copy_of("v4-rolled", tmp_path)
        flip(root / "commitlog" / f"{8192:020}", 4)
        result = firetrail("pipeline", "rebuild", root, "--into", tmp_path / "new")
        assert result.code == 1
        assert "no good record here" in result.err and "firetrail fsck" in result.err
        assert not (tmp_path / "new").exists()

    def test_wrong_targets_and_stores_are_refused(
        self, tmp_path: Path, firetrail: Firetrail
    ) -> None:
        root = copy_of("v4-clean", tmp_path)
        before = state(root)
        for wrong, word in (
            ((root, "--into", root / "new"), "inside the store"),
            ((root, "--into", tmp_path), "not an empty folder"),
            ((tmp_path, "--into", tmp_path / "new"), "not a message store"),
        ):
            result = firetrail("pipeline", "rebuild", *wrong)
            assert result.code == 2
            assert word in result.err
        assert state(root) == before
        with Store.open(root):
            result = firetrail("pipeline", "rebuild", root)
        assert result.code == 2 and "has the store open" in result.err


class TestAudit:
    def test_audit_says_of_a_sound_store_what_fsck_says(
        self, tmp_path: Path, firetrail: Firetrail
    ) -> None:
        root = copy_of("v4-clean", tmp_path)
        result = firetrail("pipeline", "audit", root)
        assert result.code == 0
        assert result.out == firetrail("fsck", root).out

    def test_audit_reports_damage(self, tmp_path: Path, firetrail: Firetrail) -> None:
        root = copy_of("v4-clean", tmp_path)
        flip(root / "commitlog" / f"{0:020}", 332 + 90)
        page = tmp_path / "page.html"
        result = firetrail("pipeline", "audit", root, "--html", page, "--work", tmp_path)
        assert result.code == 1
        kind, heads, row, blank, verdict, advice = result.out.splitlines()
        assert (kind, heads.split(), blank) == (
            "body-crc: 1 finding",
            ["file", "at", "record", "detail"],
            "",
        )
        assert row.startswith(f"commitlog/{0:020}  332     332  body CRC")
        assert "1 problem" in verdict
        assert advice.startswith("to repair it: ")
        assert "body-crc" in page.read_text(encoding="utf-8")
        result = firetrail("pipeline", "audit", root, "--json")
        assert result.code == 1
        assert result.json == firetrail("fsck", root, "--json").json

    def test_a_folder_without_a_log_is_refused(self, tmp_path: Path, firetrail: Firetrail) -> None:
        result = firetrail("pipeline", "audit", tmp_path)
        assert result.code == 2
        assert "not a message store" in result.err
