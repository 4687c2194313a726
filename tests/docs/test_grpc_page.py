"""The guide to gRPC: its programs, run with RocketMQ's own client against a broker."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.clone import ROOT
from tests.docs.pages import blocks

from firetrail.testing import RocketMQ

PAGE = ROOT / "docs" / "guide" / "grpc.md"
ADDRESS = "127.0.0.1:8081"


@pytest.mark.slow
def test_the_programs_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    pytest.importorskip("rocketmq", reason="rocketmq-python-client comes with the extra peers")
    code = [block.text for block in blocks(PAGE) if block.language == "py"]
    assert len(code) == 2 and ADDRESS in code[0]
    (shown,) = (block.text for block in blocks(PAGE) if block.text.startswith("orders paid"))
    with RocketMQ() as broker:
        broker.create_topic("orders")
        program = tmp_path / "program.py"
        program.write_text("\n".join(code).replace(ADDRESS, broker.grpc))
        done = subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, timeout=120
        )
    assert done.stdout == shown, done.stderr
