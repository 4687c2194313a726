"""The pages about operating and repairing a store list what the commands report and do."""

import re
from pathlib import Path

from firetrail import Message, Store, StoreConfig
from firetrail.cli.stores.info import collect
from firetrail.store.inspect.view import StoreView
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


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_every_json_key_of_info_is_listed(tmp_path: Path) -> None:
    with Store.open(tmp_path, StoreConfig().for_files(index_slots=20, index_entries=64)) as store:
        store.put(Message("T", b"", keys=["k"]))
    with StoreView.open(tmp_path) as view:
        facts = collect(view)
    described = facts | {"checkpoint": None, "watermark": None}  # on pages of their own
    text = (GUIDES / "operations.md").read_text(encoding="utf-8")
    section = text.partition("## See what a store contains")[2].partition("\n## ")[0]
    assert facts["topics"] and facts["index"]
    assert keys_of(described) <= set(re.findall(r"`(\w+)`", section))
