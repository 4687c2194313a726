"""A server that another one runs as a process of its own, and starts again when it ends."""

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress

from firetrail.cli.output import say
from firetrail.errors import FiretrailError
from firetrail.libc import end_with_parent
from firetrail.system import SYSTEM

PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
"""Pause before a process that has ended is started again. It doubles up to the longest one."""
STEADY_S = 60.0
"""A process that has run for this long begins with the first pause again."""
HELD_POLL_S = 0.2
"""Pause between two checks whether a server may be started again."""
STOP_S = 60.0
"""The time that a process may take to end after SIGTERM."""


class ServerProcess:
    """Runs a command until it is stopped.

    The process has a session of its own, so Ctrl-C does not reach it: its owner stops all servers
    in order. If the owner is killed, the process gets SIGTERM.

    Attributes:
        name: Its name in messages.
        ended: Set if the process has ended before :meth:`settle` was called; it is then not
            started again.
    """

    def __init__(
        self, name: str, command: Sequence[str], may_start: Callable[[], bool] = lambda: True
    ) -> None:
        """Prepare; :meth:`start` begins.

        Args:
            name: Its name in messages.
            command: The program and its arguments.
            may_start: Whether the process may be started now; called in a thread. The default
                always returns True.
        """
        self.name = name
        self._command = command
        self._may_start = may_start
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_settled = self._is_stopping = False
        self._said = ""  # its last line on standard error
        self.ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process; None if it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Run the command from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def settle(self) -> None:
        """Start the process again from now on if it ends."""
        self._is_settled = True

    def check(self) -> None:
        """Raise FiretrailError if the process has ended before it was settled."""
        if self.ended.is_set():
            raise FiretrailError(f"{self.name} has not started: {self._said or 'it has ended'}")

    async def stop(self) -> None:
        """End the process, and wait until it has ended."""
        self._is_stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                say(f"{self.name} has not ended within {STOP_S:g} s of SIGTERM, and is killed")
                with suppress(ProcessLookupError):
                    process.kill()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while not self._is_stopping:
            if not await asyncio.to_thread(self._may_start):
                await asyncio.sleep(HELD_POLL_S)
                continue
            began = SYSTEM.clock.monotonic()
            code = await self._run_once()
            if self._is_stopping:
                return
            if not self._is_settled:
                self.ended.set()
                return
            if SYSTEM.clock.monotonic() - began > STEADY_S:
                pause_s = PAUSE_S
            if await asyncio.to_thread(self._may_start):
                say(f"{self.name} has ended ({_how(code)}) and is started again in {pause_s:g} s")
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _run_once(self) -> int:
        """Run the process until it ends; return its code."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        self._process = process
        if self._is_stopping:  # checked after the assignment: stop() may have run meanwhile
            process.terminate()
        assert process.stderr is not None
        while line := await process.stderr.readline():
            self._said = line.decode(errors="replace").strip().removeprefix("firetrail: ")
            if not self._is_stopping:
                say(f"{self.name}: {self._said}")
        return await process.wait()

    async def _pause(self, pause_s: float) -> None:
        over_at = SYSTEM.clock.monotonic() + pause_s
        while not self._is_stopping and SYSTEM.clock.monotonic() < over_at:
            await asyncio.sleep(HELD_POLL_S)


def _how(code: int) -> str:
    """Describe how a process has ended."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
