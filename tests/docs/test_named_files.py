"""Files that pages name exist."""

import re

from tests.clone import ROOT, pages
from tests.docs.pages import BLOCK, needs_clone

FOLDERS = "benchmarks|docs|examples|fuzz|interop|src|tests"
NAMED_FILE = re.compile(rf"`((?:{FOLDERS})/[\w./-]+)`")


@needs_clone
def test_named_files_exist() -> None:
    named = [
        (path, name)
        for path in pages()
        for name in NAMED_FILE.findall(BLOCK.sub("", path.read_text(encoding="utf-8")))
    ]
    assert len(named) > 50
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in named
        if not (ROOT / name).exists() and not (path.parent / name).exists()
    ]
    assert not missing
