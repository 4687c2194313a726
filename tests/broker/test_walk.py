"""The modules that a message passes are those in docs/design/architecture.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HELPERS = re.compile(
    r"format\.(?!kernels\.)[\w.]+|format\.kernels\.(_bigendian|checksum|properties|text)"
)
"""Modules that only compute a value from their arguments."""
SYSTEM = re.compile(r"system\.\w+")
"""The modules of the package that wraps the operating system, which counts as one."""


def documented() -> tuple[int, list[str]]:
    """Return the number of modules on the page, and their names."""
    page = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    section = page[page.index("### Module by module") : page.index("## Threads")]
    number = re.search(r"passes (\d+) modules", section)
    assert number is not None
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return int(number[1]), re.findall(r"`([\w.]+)`", "\n".join(rows))


def test_a_message_passes_the_documented_modules() -> None:
    traced = subprocess.run(
        [sys.executable, ROOT / "tests" / "broker" / "walk.py"],
        env=os.environ | {"FIRETRAIL_PURE": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    passed = {name.removeprefix("firetrail.") for name in json.loads(traced.stdout)["every"]}
    number, names = documented()
    counted = {SYSTEM.sub("system", name) for name in passed if not HELPERS.fullmatch(name)}
    assert counted <= set(names)
    assert number == len(names) == len(set(names)) <= 43
