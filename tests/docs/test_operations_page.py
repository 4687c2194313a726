"""The page about operating a store lists what the check can report."""

import re
from pathlib import Path

from firetrail.store.inspect.problems import WARNINGS, ProblemKind
from firetrail.store.repair.repair import Repair

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "operations.md"


def listed(part: str) -> set[str]:
    rows = re.findall(r"^\| (`[^|]+) \|", part, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}


def test_every_kind_of_problem_is_listed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    kinds = text.partition("### Kinds")[2].partition("### What a check cannot see")[0]
    problems, _, warnings = kinds.partition("Warnings, which")
    assert listed(problems) == {kind.value for kind in set(ProblemKind) - WARNINGS}
    assert listed(warnings) == {kind.value for kind in WARNINGS}


def test_every_repair_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Repair")[2]
    assert all(f"`{repair.value}`\n: " in text for repair in Repair)
