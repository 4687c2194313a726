"""The guide to testing: its fixture and test, as files that pytest runs."""

import subprocess
import sys
from pathlib import Path

from tests.clone import ROOT
from tests.docs.pages import blocks

PAGE = ROOT / "docs" / "guide" / "testing-with-firetrail.md"


def test_the_test_on_the_page_passes_with_the_fixture(tmp_path: Path) -> None:
    for block in blocks(PAGE):
        name = block.text.partition("\n")[0].removeprefix("# ")
        if block.language == "python" and name.endswith(".py"):
            (tmp_path / name).write_text(block.text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conftest.py", "test_shop.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "1 passed" in done.stdout, done.stdout
