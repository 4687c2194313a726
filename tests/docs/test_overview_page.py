"""The overview names modules that exist, and each rule has one owner."""

import re

from tests.clone import ROOT

PAGE = (ROOT / "docs" / "design" / "overview.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "firetrail"
PICTURE, _, TABLE = PAGE.partition("## One message as bytes")[2].partition("## Who decides what")
ROWS = re.findall(r"^\| (.+) \| `([\w.]+)` \|$", TABLE, re.MULTILINE)
LAYERS = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_the_modules_of_the_path_exist() -> None:
    named = re.findall(rf"\b(?:{LAYERS})(?:\.\w+)+", PICTURE)
    assert len(named) > 20
    assert not [name for name in named if not is_module(name)]


def test_each_rule_has_a_module_that_exists() -> None:
    assert len(ROWS) > 30
    assert not [name for _, name in ROWS if not is_module(name)]


def test_no_rule_and_no_module_is_listed_twice() -> None:
    rules, owners = zip(*ROWS, strict=True)
    assert len(set(rules)) == len(rules)
    assert len(set(owners)) == len(owners)
