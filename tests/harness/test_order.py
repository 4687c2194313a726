"""A run in random order says how to repeat it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_last_lines_name_the_seed_of_a_random_order() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    command += ["-p", "randomly", "--randomly-seed=7", "tests/harness/test_order.py"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "repeat with make test ORDER=random SEED=7 " in said
    assert "(pytest -p randomly --randomly-seed=7)" in said
