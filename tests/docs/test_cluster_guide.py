"""The guide *Three members in five minutes*, run as it is written, on ports of the tests."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.clone import ROOT
from tests.crash.files_check import read_log
from tests.docs.pages import blocks
from tests.helpers import PATIENCE_S, eventually
from tests.machine.etcd_program import MISSING, PROGRAM, find_etcd
from tests.ports import free_port

PAGE = ROOT / "docs/guide/cluster.md"
BIN = Path(sys.executable).parent
SHOWN_PID = "4711"
"""The process of member 1 on the page."""


class Session:
    """Runs the lines of the page in a folder."""

    def __init__(self, folder: Path, etcd: str) -> None:
        self.folder = folder
        ports = {"--port": free_port(), "--namesrv-port": free_port(), "--etcd-port": free_port()}
        self.options = " ".join(f"{option} {port}" for option, port in ports.items())
        self.environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "NAMESRV_ADDR": f"127.0.0.1:{ports['--namesrv-port']}",
            PROGRAM: etcd,
        }
        self.pid = ""

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        command = line.replace(SHOWN_PID, self.pid)
        return subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=10 * PATIENCE_S,
        )

    @contextmanager
    def up(self, line: str) -> Iterator[None]:
        """Run the line that starts the cluster, until it prints where the servers are."""
        command = shlex.split(f"{line} {self.options} --json")
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                found = json.loads(process.stdout.readline())
                self.pid = str(found["members"][0]["process"])
                yield
                process.send_signal(signal.SIGINT)
                assert process.wait(10 * PATIENCE_S) == 0
            finally:
                process.kill()


@pytest.mark.slow
@pytest.mark.skipif(find_etcd() is None, reason=MISSING)
def test_the_guide_works_as_it_is_written(tmp_path: Path) -> None:
    lines = [
        line for block in blocks(PAGE) if block.language == "sh" for line in block.text.splitlines()
    ]
    etcd = find_etcd()
    assert etcd is not None
    session = Session(tmp_path, etcd)
    first, *others = lines
    assert first == "firetrail cluster up shop"
    with session.up(first):
        for line in others:
            check(session, line)
    for number in (1, 2, 3):
        records = read_log(tmp_path / "shop" / f"member-{number}" / "store" / "commitlog")[0]
        bodies = {record.body for record in records}
        assert {b"the first message", b"sent without member 1"} <= bodies


def check(session: Session, line: str) -> None:
    """Run a line of the page; the states and sends after a failure may take some time."""
    if line.startswith(("firetrail cluster status", "firetrail send")):
        done: list[subprocess.CompletedProcess[str]] = []

        def succeeds() -> bool:
            done.append(session.run(line))
            return done[-1].returncode == 0

        eventually(succeeds)
        if line.startswith("firetrail cluster status"):
            states = re.findall(r" (master|in-sync) ", done[-1].stdout)
            assert len(states) >= 3
        return
    done_once = session.run(line)
    assert done_once.returncode == 0, done_once.stderr
