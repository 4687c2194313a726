"""Servers under a service manager: what they tell it, and what signals do."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S

from firetrail.cli.servers import service
from firetrail.cli.servers.service import Service
from firetrail.cli.servers.service_manager import ServiceManager
from firetrail.errors import ConfigError


class FakeManager:
    """The socket of a service manager."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if name[0] == "@" else name)
        self._socket.settimeout(PATIENCE_S)

    def next(self) -> dict[str, str]:
        lines = self._socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    async def heard(self, name: str) -> dict[str, str]:
        """Return the next datagram with a field; skip the others."""
        while name not in (found := await asyncio.to_thread(self.next)):
            pass
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeManager]:
    name = str(tmp_path / "notify") if request.param == "file" else f"@{tmp_path}/notify"
    manager = FakeManager(name)
    yield manager
    manager.close()


@pytest.fixture(autouse=True)
def not_interactive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_is_interactive", lambda: False)


def told_to(manager: FakeManager, **more: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": manager.name, **more})


async def test_a_server_is_ready_reloads_and_stops(manager: FakeManager) -> None:
    reloads: list[int] = []

    async def reload() -> str:
        reloads.append(1)
        return "fileReservedTime has changed"

    running = asyncio.ensure_future(Service(reload, told_to(manager)).until_stopped("on port 1"))
    assert await manager.heard("READY") == {"READY": "1", "STATUS": "on port 1"}
    os.kill(os.getpid(), signal.SIGHUP)
    assert int((await manager.heard("RELOADING"))["MONOTONIC_USEC"]) > 0
    assert await manager.heard("READY") == {"READY": "1", "STATUS": "on port 1"}
    assert reloads == [1]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await manager.heard("STOPPING") == {"STOPPING": "1", "STATUS": "stopping"}
    await running


async def test_the_watchdog_hears_of_the_event_loop(manager: FakeManager) -> None:
    told = told_to(manager, WATCHDOG_USEC="20000", WATCHDOG_PID=str(os.getpid()))
    running = asyncio.ensure_future(Service(None, told).until_stopped())
    for _ in range(3):
        assert await manager.heard("WATCHDOG") == {"WATCHDOG": "1"}
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert not [task for task in asyncio.all_tasks() if "Service._watch" in repr(task)]


@pytest.mark.parametrize(
    ("variables", "time_limit"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_time_limit_of_the_watchdog(
    variables: dict[str, str], time_limit: float | None
) -> None:
    assert ServiceManager({"NOTIFY_SOCKET": "/x", **variables}).watchdog_s == time_limit
    assert ServiceManager(variables).watchdog_s is None


def test_a_service_manager_that_is_gone_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    manager.ready("serving")
    manager.stopping()
    (line,) = caplog.messages
    assert line.startswith(f"the service manager at {tmp_path}/nobody cannot be notified: ")


async def test_a_failed_reload_does_not_stop_the_server(
    manager: FakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> str:
        raise ConfigError("listenPort", "x", "must be a number")

    caplog.set_level(logging.INFO)
    running = asyncio.ensure_future(Service(fail, told_to(manager)).until_stopped())
    await manager.heard("READY")
    os.kill(os.getpid(), signal.SIGHUP)
    await manager.heard("READY")
    os.kill(os.getpid(), signal.SIGINT)
    await running
    assert "not everything was read again: listenPort = 'x': must be a number" in caplog.text


async def test_a_hangup_during_the_start_is_handled_later(manager: FakeManager) -> None:
    reloaded = asyncio.Event()

    async def reload() -> str:
        reloaded.set()
        return ""

    starting = Service(reload, told_to(manager))
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0)
    running = asyncio.ensure_future(starting.until_stopped())
    await asyncio.wait_for(reloaded.wait(), PATIENCE_S)
    os.kill(os.getpid(), signal.SIGTERM)
    await running


async def test_a_closed_terminal_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_is_interactive", lambda: True)
    running = asyncio.ensure_future(Service(None, ServiceManager({})).until_stopped())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGHUP)
    await running
