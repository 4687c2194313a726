"""The pages about operating and repairing a store list what the commands report and do."""

import re
from pathlib import Path

from firetrail.store.problems import WARNINGS, ProblemKind
from firetrail.store.repair.repair import Repair

GUIDES = Path(__file__).parents[2] / "docs" / "guide"


def listed(part: str) -> set[str]:
    rows = re.findall(r"^\| (`[^|]+) \|", part, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}


def test_every_kind_of_problem_is_listed() -> None:
    text = (GUIDES / "operations.md").read_text(encoding="utf-8")
    problems, _, warnings = text.partition("## Kinds of problems")[2].partition("### Warnings")
    assert listed(problems) == {kind.value for kind in set(ProblemKind) - WARNINGS}
    assert listed(warnings) == {kind.value for kind in WARNINGS}


def test_every_repair_is_explained() -> None:
    text = (GUIDES / "repair.md").read_text(encoding="utf-8")
    assert all(f"\n- **`{repair.value}`** " in text for repair in Repair)
