"""Guides and examples import what the packages export, and nothing from their modules."""

import ast
from pathlib import Path

import pytest
from tests.clone import ROOT
from tests.docs.pages import blocks

FRONT_DOORS = {
    "firetrail",
    "firetrail.broker",
    "firetrail.cli",
    "firetrail.client",
    "firetrail.client.sync",
    "firetrail.errors",
    "firetrail.pipeline",
    "firetrail.testing",
}
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "configuration.md",
    ROOT / "docs" / "errors.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


def deep_imports(code: str) -> list[str]:
    """The modules of Firetrail that the code imports past the front doors."""
    imported = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            imported.append(node.module or "")
        elif isinstance(node, ast.Import):
            imported += [name.name for name in node.names]
    return [
        name for name in imported if name.split(".")[0] == "firetrail" and name not in FRONT_DOORS
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_guide_uses_the_front_doors(page: Path) -> None:
    code = [block.text for block in blocks(page) if block.language in ("python", "py")]
    assert not [name for text in code for name in deep_imports(text)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_uses_the_front_doors(example: Path) -> None:
    assert not deep_imports(example.read_text(encoding="utf-8"))


def test_a_deep_import_is_found() -> None:
    assert deep_imports("from firetrail.store.settings.store_config import StoreConfig") == [
        "firetrail.store.settings.store_config"
    ]
    assert not deep_imports("from firetrail import StoreConfig\nimport firetrail.client")
