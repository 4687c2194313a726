"""The code in README and docs/: it runs, prints what the page says, and covers the public names.

A page is one session: its ``python`` blocks run in order, in one namespace and an empty folder. A
``text`` block directly behind one is what it prints. Lines ``$ firetrail …`` of ``console`` blocks
run in the same folder; what follows them is their output. ``...`` stands for anything, a time for
any other time, and blanks do not count.
"""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import firetrail
from firetrail import errors
from firetrail.store.watermark import _SLOT

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide/embedding.md"
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
    """What the page says that a block prints."""
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


def run_console(page: Path, block: Block) -> None:
    """Run the commands of a block that are Firetrail's."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        if command.split()[0] != "firetrail":
            continue
        done = subprocess.run(
            command,
            shell=True,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        if shown.strip():
            check_output(f"{page.name}:{block.line}: $ {command}", shown, done.stdout)
        else:
            assert done.returncode == 0, f"{page.name}: $ {command}\n{done.stdout}"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(b.language == "python" for b in blocks(page))],
    ids=lambda page: page.name,
)
def test_code(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(page, block, namespace)
        elif block.language == "console":
            run_console(page, block)


def test_links_lead_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
        if not (page.parent / target).exists()
    ]
    assert not dead


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / target).resolve() for target in LINK.findall(index)}
    pages = {page for page in PAGES if page.parent != ROOT} - {ROOT / "docs/README.md"}
    assert not {str(page.relative_to(ROOT)) for page in pages - listed}


def test_the_guide_covers_the_public_names() -> None:
    """Whatever a program can call is explained somewhere in the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    names = {name for name in firetrail.__all__ if not name.startswith("__")}
    names |= {name for name in dir(firetrail.Store) if not name.startswith("_")}
    names |= {status.value for status in firetrail.GetStatus}
    names |= {status.value for status in firetrail.PutStatus}
    assert not sorted(name for name in names if not re.search(rf"\b{name}\b", text))


def test_the_guide_has_a_remedy_for_every_error() -> None:
    tables = [
        guide.read_text(encoding="utf-8").partition("## When something goes wrong")[2]
        for guide in GUIDE.parent.glob("*.md")
    ]
    rows = set(re.findall(r"^\| `(\w+)", "\n".join(tables), re.MULTILINE))
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.FiretrailError)
    }
    assert rows >= raised - {"FiretrailError", "StoreError"}


def test_the_watermark_s_table() -> None:
    """Offsets and sizes on the page are those of the file."""
    text = (ROOT / "docs/design/durability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\w -]+) \| (\d+) \|", text, re.MULTILINE)
    shown = {name.replace(" ", "_"): int(at) for at, name, _ in rows}
    assert shown == {**_SLOT.offsets, "CRC-32": _SLOT.size}
    assert sum(int(size) for _, _, size in rows) == _SLOT.size + 4
