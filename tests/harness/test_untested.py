"""The last lines of a run say what was not tested, why, and how to change that."""

from pathlib import Path

from tests.harness.pytest_runs import run_tests
from tests.harness.untested import HEADLINE

SKIPPING = """
import pytest


@pytest.fixture
def etcd():
    pytest.skip("there is no etcd: run make setup")


def test_one(etcd):
    pass


def test_two(etcd):
    pass


def test_three():
    pytest.skip("openssl is missing: install it")


def test_four():
    pass
"""


def test_skipped_tests_are_counted_by_reason_and_file(tmp_path: Path) -> None:
    said = run_tests(tmp_path, SKIPPING)
    assert HEADLINE in said
    assert "there is no etcd: run make setup: test_inner.py (2)\n" in said
    assert "openssl is missing: install it: test_inner.py (1)\n" in said
    assert said.strip().splitlines()[-1].startswith("1 passed, 3 skipped")
