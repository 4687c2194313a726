"""The code in README and docs/: it runs, prints what the page says, and covers the public names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.clone import ROOT
from tests.docs.pages import LINK, PAGES, blocks, run_page, uses_spark

import firetrail
from firetrail import errors
from firetrail.store.root.watermark import _SLOT

STORE_GUIDES = [
    ROOT / "docs/guide" / name
    for name in ("embedding.md", "store-settings.md", "sharing-stores.md")
]
ERRORS_PAGE = ROOT / "docs/errors.md"


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if any(block.language == "python" for block in blocks(page)) and not uses_spark(page)
    ],
    ids=lambda page: page.name,
)
def test_the_code_of_a_page_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, run_command)


def run_command(command: str) -> tuple[int, str]:
    done = subprocess.run(
        command,
        shell=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / target).resolve() for target in LINK.findall(index)}
    pages = {page for page in PAGES if page.parent != ROOT} - {ROOT / "docs/README.md"}
    assert not {str(page.relative_to(ROOT)) for page in pages - listed}


def test_the_guides_cover_the_public_names() -> None:
    """Every public name of the store is explained in one of its guides or on the error page."""
    text = "".join(page.read_text(encoding="utf-8") for page in [*STORE_GUIDES, ERRORS_PAGE])
    names = {name for name in firetrail.__all__ if not name.startswith("__")}
    names |= {name for name in dir(firetrail.Store) if not name.startswith("_")}
    names |= {status.value for status in firetrail.GetStatus}
    names |= {status.value for status in firetrail.PutStatus}
    assert not sorted(name for name in names if not re.search(rf"\b{name}\b", text))


def test_the_error_page_lists_every_error_and_marks_the_retriable_ones() -> None:
    text = ERRORS_PAGE.read_text(encoding="utf-8")
    entries = dict(re.findall(r"^- \*\*`(\w+)`\*\*( \(retriable\))?: ", text, re.MULTILINE))
    per_instance = (errors.NoRouteYetError, errors.NoMasterYetError)
    assert all(kind(17, "T").retriable for kind in per_instance)
    expected = {
        name: " (retriable)" if value.retriable or value in per_instance else ""
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.FiretrailError)
    }
    bases = ("FiretrailError", "StoreError")
    assert entries == {name: mark for name, mark in expected.items() if name not in bases}
    assert all(f"`{base}`" in text for base in bases)


def test_the_error_page_lists_the_retriable_codes() -> None:
    text = " ".join(ERRORS_PAGE.read_text(encoding="utf-8").split())
    listed = re.search(r"retriable for the codes ([\d, and]+)\.", text)
    assert listed
    assert {int(code) for code in re.findall(r"\d+", listed[1])} == errors.RETRIABLE_CODES


def test_the_table_of_the_watermark_has_its_offsets_and_sizes() -> None:
    """Offsets and sizes on the page are those of the file."""
    text = (ROOT / "docs/design/durability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\w -]+) \| (\d+) \|", text, re.MULTILINE)
    shown = {name.replace(" ", "_"): int(at) for at, name, _ in rows}
    assert shown == {**_SLOT.offsets, "CRC-32": _SLOT.size}
    assert sum(int(size) for _, _, size in rows) == _SLOT.size + 4
