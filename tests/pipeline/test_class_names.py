"""The names of the pipeline's classes are unique in the whole package."""

import ast
from collections import Counter
from pathlib import Path

import firetrail

PACKAGE = Path(firetrail.__file__).parent


def class_names(folder: Path) -> list[str]:
    """Return the names of all classes below a folder, without leading underscores."""
    return [
        node.name.lstrip("_")
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def test_no_class_of_the_pipeline_shares_its_name_with_another_class() -> None:
    counts = Counter(class_names(PACKAGE))
    assert not [name for name in class_names(PACKAGE / "pipeline") if counts[name] > 1]
