"""Pages name files and headings that exist."""

import re
from pathlib import Path

import pytest
from tests.docs.pages import BLOCK
from tests.test_repository import ROOT, files

FOLDERS = "benchmarks|docs|examples|fuzz|interop|src|tests"
NAMED_FILE = re.compile(rf"`((?:{FOLDERS})/[\w./-]+)`")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="only in a clone: git lists the pages"
)


def prose() -> dict[Path, str]:
    """Return the text of every page, without its blocks of code."""
    return {
        path: BLOCK.sub("", path.read_text(encoding="utf-8"))
        for path in files()
        if path.suffix == ".md"
    }


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub derives them."""
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in kept}


def test_links_to_headings_lead_somewhere() -> None:
    pages = prose()
    links = [
        (path, (path.parent / target).resolve() if target else path, anchor)
        for path, text in pages.items()
        for target, anchor in ANCHOR.findall(text)
    ]
    assert len(links) > 20
    dead = [
        f"{path.relative_to(ROOT)}: {target.name}#{anchor}"
        for path, target, anchor in links
        if anchor not in anchors(pages[target])
    ]
    assert not dead


def test_named_files_exist() -> None:
    named = [(path, name) for path, text in prose().items() for name in NAMED_FILE.findall(text)]
    assert len(named) > 50
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in named
        if not (ROOT / name).exists() and not (path.parent / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## Planning among many queues", "planning-among-many-queues"),
        ("### What grows, and with what", "what-grows-and-with-what"),
        ("# The `.pxd` files", "the-pxd-files"),
    ],
)
def test_anchors(heading: str, anchor: str) -> None:
    assert anchors(f"text\n{heading}\n") == {anchor}
