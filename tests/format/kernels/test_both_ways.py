"""Compiled and uncompiled kernels do the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firetrail import kernels

ROOT = Path(__file__).parents[3]


def run_scenario(pure: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.format.kernels.scenario"],
        cwd=ROOT,
        env=os.environ | {"FIRETRAIL_PURE": pure},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not kernels.COMPILED, reason="there is one way only")
def test_results_are_equal() -> None:
    compiled, pure = run_scenario("0"), run_scenario("1")
    for ours, theirs in zip(compiled, pure, strict=True):
        assert ours == theirs
    assert len(compiled) > 500
