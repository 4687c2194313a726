"""The pages of documentation, their blocks of code, and the output that the pages show.

A page is one session: its ``python`` blocks run in order, in one namespace and an empty folder. A
``text`` block directly after a ``python`` block is its output. Lines ``$ firetrail …`` of
``console`` blocks run in the same folder; the lines after them are their output. ``...`` matches
anything, a time matches any other time, and white space is ignored.
"""

import contextlib
import doctest
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.clone import IS_CLONE, ROOT

needs_clone = pytest.mark.skipif(not IS_CLONE, reason="only in a clone: git lists the pages")
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if "format" not in path.parts  # test_format_pages.py
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z")
AS_SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int  # of its first line of text
    start: int  # in the page
    end: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found[1], found[2], text.count("\n", 0, found.start(2)) + 1, found.start(), found.end()
        )
        for found in BLOCK.finditer(text)
    ]


def output_of(page: Path, block: Block) -> str | None:
    text = page.read_text(encoding="utf-8")
    following = next((other for other in blocks(page) if other.start > block.start), None)
    if following is None or following.language != "text":
        return None
    return None if text[block.end : following.start].strip() else following.text


def check_output(place: str, shown: str, printed: str) -> None:
    matches = doctest.OutputChecker().check_output(
        TIME.sub("TIME", shown), TIME.sub("TIME", printed), AS_SHOWN
    )
    assert matches, f"{place} shows\n{shown}\nbut it prints\n{printed}"


def run_python(page: Path, block: Block, namespace: dict[str, Any]) -> None:
    """Run a block; tracebacks name the line of the page."""
    source = "\n" * (block.line - 1) + block.text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, str(page), "exec"), namespace)
    shown = output_of(page, block)
    if shown is not None:
        check_output(f"{page.name}:{block.line}", shown, printed.getvalue())


def run_console(page: Path, block: Block, run: Callable[[str], tuple[int, str]]) -> None:
    """Run the commands of a block that are Firetrail's; ``run`` gives exit code and output."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        if command.split()[0] != "firetrail":
            continue
        code, printed = run(command)
        if shown.strip():
            check_output(f"{page.name}:{block.line}: $ {command}", shown, printed)
        else:
            assert code == 0, f"{page.name}: $ {command}\n{printed}"


def run_page(page: Path, run: Callable[[str], tuple[int, str]]) -> None:
    """Run everything on a page, in the current folder."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(page, block, namespace)
        elif block.language == "console":
            run_console(page, block, run)


def uses_spark(page: Path) -> bool:
    """Whether something on the page needs a session (tests/pipeline/test_guide.py runs it)."""
    return any(
        re.search(r"firetrail[. ]pipeline", block.text)
        for block in blocks(page)
        if block.language in ("python", "console")
    )
