"""Links between pages lead to files that exist, and fragments to headings that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clone import pages
from tests.docs.pages import BLOCK, needs_clone

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
LINKED_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")
NOT_IN_A_FRAGMENT = re.compile(r"[^\w\- ]")


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def fragments(text: str) -> set[str]:
    """Return the fragments that GitHub gives the headings of a page."""
    headings = (LINKED_TEXT.sub(r"\1", heading) for heading in HEADING.findall(text))
    return {
        NOT_IN_A_FRAGMENT.sub("", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


def dead_links(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    for target, fragment in LINK.findall(prose(page)):
        linked = page.parent / target if target else page
        missing = not linked.exists()
        if missing or (fragment and fragment not in fragments(prose(linked))):
            yield f"{page.name}: {target}#{fragment}"


@needs_clone
def test_links_lead_to_pages_and_headings() -> None:
    assert len(pages()) > 30
    assert not [link for page in pages() for link in dead_links(page)]


@pytest.mark.parametrize(
    ("heading", "fragment"),
    [
        ("## Planning among many queues", "planning-among-many-queues"),
        ("### What grows, and with what", "what-grows-and-with-what"),
        ("# The `.pxd` files", "the-pxd-files"),
    ],
)
def test_fragments_are_those_of_github(heading: str, fragment: str) -> None:
    assert fragments(f"text\n{heading}\n") == {fragment}


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n## Output of `fsck --json`\n\n"
        "[here](#output-of-fsck---json) [gone](#gone) [none](none.md) [other](other.md#a-b)\n"
        "[wrong](other.md#b) [site](https://example.org/x#y)\n"
    )
    (tmp_path / "other.md").write_text("# A, b\n")
    assert list(dead_links(page)) == ["page.md: #gone", "page.md: none.md#", "page.md: other.md#b"]
