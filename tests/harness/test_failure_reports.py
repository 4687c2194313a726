"""A run continues after failed tests that leave tasks with exceptions."""

from pathlib import Path

from tests.harness.pytest_runs import run_tests

FAILING = '''
"""Failing tests whose garbage is collected, and parses source, while the next is reported."""
import ast, gc

class Left:
    def __init__(self):
        self.cycle = self
    def __del__(self):
        ast.parse("x = [1, 2, 3]")

def deeper(depth):
    if depth:
        deeper(depth - 1)
    gc.set_threshold(50)
    left = [Left() for _ in range(40)]
    assert left == []

def test_one(): deeper(3)
def test_two(): deeper(3)
def test_three(): deeper(3)
'''


def test_garbage_of_failed_tests_does_not_end_the_run(tmp_path: Path) -> None:
    printed = run_tests(tmp_path, FAILING)
    assert "3 failed" in printed and "INTERNALERROR" not in printed, printed
