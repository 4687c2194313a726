"""Servers in processes of their own: started again, held, stopped, and ended with their owner."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.clusters import until
from tests.helpers import PATIENCE_S, eventually

from firetrail.cli.servers import server_process
from firetrail.cli.servers.server_process import ServerProcess
from firetrail.errors import FiretrailError

NOTES_START = "import sys; open(sys.argv[1], 'a').write('started\\n'); "
WAITS = "import signal; signal.pause()"
IGNORES = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', file=sys.stderr, flush=True); signal.pause(); signal.pause()"
)
OWNER = f"""
import asyncio, sys
from firetrail.cli.servers.server_process import ServerProcess

async def main():
    server = ServerProcess("server", [sys.executable, "-c", {WAITS!r}])
    server.start()
    while server.pid is None:
        await asyncio.sleep(0.01)
    print(server.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def server_that(
    script: str, *arguments: str, may_start: Callable[[], bool] = lambda: True
) -> ServerProcess:
    return ServerProcess("member 1", [sys.executable, "-c", script, *arguments], may_start)


def starts(notes: Path) -> int:
    return len(notes.read_text().splitlines()) if notes.exists() else 0


async def test_a_server_that_ends_at_once_has_not_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = server_that("import sys; sys.exit('firetrail: error: port 1 is in use')")
    server.start()
    await until(server.ended.is_set)
    with pytest.raises(FiretrailError, match="member 1 has not started: error: port 1 is in use"):
        server.check()
    assert "firetrail: member 1: error: port 1 is in use" in capsys.readouterr().err
    await server.stop()


async def test_a_server_that_ends_later_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_process, "PAUSE_S", 0.01)
    monkeypatch.setattr(server_process, "HELD_POLL_S", 0.01)
    server = server_that(f"{NOTES_START} {WAITS}", str(tmp_path / "notes"))
    server.settle()
    server.start()
    await until(lambda: starts(tmp_path / "notes") == 1)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await until(lambda: starts(tmp_path / "notes") == 2)
    await server.stop()
    assert server.pid is None
    assert "member 1 has ended (SIGKILL) and is started again in 0.01 s" in capsys.readouterr().err


async def test_a_server_that_is_held_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "HELD_POLL_S", 0.01)
    notes = tmp_path / "notes"
    may_start, looks = threading.Event(), []

    def look() -> bool:
        looks.append(notes)
        return may_start.is_set()

    server = server_that(f"{NOTES_START} {WAITS}", str(notes), may_start=look)
    server.settle()
    server.start()
    await until(lambda: len(looks) > 2)
    assert server.pid is None
    may_start.set()
    await until(lambda: starts(notes) == 1)
    await server.stop()


async def test_a_server_that_does_not_stop_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_process, "STOP_S", 0.05)
    server = server_that(IGNORES)
    server.start()
    await until(lambda: server._said == "ready")
    await server.stop()
    assert server.pid is None
    assert "member 1 has not ended within 0.05 s of SIGTERM" in capsys.readouterr().err


def test_a_server_ends_with_its_owner() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        owner.kill()
        owner.wait(PATIENCE_S)

    def is_gone() -> bool:
        stat = Path(f"/proc/{server}/stat")
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    eventually(is_gone)
