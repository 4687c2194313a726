"""The reference page is made from the table, and says what is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from firetrail.store.config import SETTINGS
from firetrail.store.config_page import page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m firetrail.store.config_page docs/configuration.md"
    )


def test_the_page_has_a_line_for_every_setting() -> None:
    names = re.findall(r"^\| `(\w+)` \|", page(), re.MULTILINE)
    assert names == list(SETTINGS)


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", page(), re.DOTALL)
    exec(example, {})


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    command = [sys.executable, "-m", "firetrail.store.config_page"]
    subprocess.run([*command, str(target)], check=True)
    assert target.read_text(encoding="utf-8") == page()
    usage = subprocess.run(command, capture_output=True, text=True, check=False)
    assert usage.returncode == 1
    assert "docs/configuration.md" in usage.stderr
