"""Every page is wrapped at 100 columns, tables included, so that it is readable as plain text."""

import re
from collections.abc import Iterator

import pytest
from tests.clone import ROOT, pages
from tests.docs.pages import needs_clone

COLUMNS = 100
FENCE = re.compile(r"\s*```(\w*)")
CODE = ("py", "python")
"""Blocks that are wrapped as well; all others show commands, output or bytes as they are."""
UNBREAKABLE = re.compile(r"\s*(?:[-*] |\d+\. )?\S+$")
REFERENCE = re.compile(r"\[[^\]]+\]: \S+$")


def long_lines(text: str) -> Iterator[int]:
    block: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if fence := FENCE.match(line):
            block = fence[1] if block is None else None
        if len(line) <= COLUMNS or (block is not None and block not in CODE):
            continue
        if not UNBREAKABLE.match(line) and not REFERENCE.match(line):
            yield number


@needs_clone
def test_pages_are_wrapped() -> None:
    assert len(pages()) > 30
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in pages()
        for number in long_lines(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"wrap these lines at {COLUMNS} columns; turn wide tables into lists"


LONG = "word " * 21


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LONG, [1]),
        (f"fine\n\n- {LONG}\n", [3]),
        (f"| a | {LONG} |\n", [1]),
        (f"```text\n{LONG}\n```\n{LONG}\n", [4]),
        (f"```python\nfirst = '{LONG}'\n```\n", [2]),
        (f"  ```\n  {LONG}\n  ```\n", []),
        (f"- https://example.org/{'x' * 100}\n", []),
        (f"[page]: https://example.org/{'x' * 100}\n", []),
        ("é" * 50 + " " + "é" * 49, []),
    ],
)
def test_long_lines_are_found(text: str, found: list[int]) -> None:
    assert list(long_lines(text)) == found
