"""``firetrail up`` in a process of its own, to be tormented.

Another broker with the same wire and files may take its place (``interop/tormented.py``).
"""

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.ports import free_ports
from tests.torture.faults import Faults

ROOT = Path(__file__).parents[2]
START_S = 300.0
"""Patience with a start; it takes half a second, and a minute on a machine that is overloaded."""
CONF = {
    "vip_channel": "false",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "4000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "maxMessageSize": "65536",
    "messageDelayLevel": "1s 2s 1s 1s",
    "flushConsumerOffsetInterval": "200",
    "flushDelayOffsetInterval": "200",
    "flushIntervalCommitLog": "50",
    "flushCommitLogLeastPages": "0",
    "flushIntervalConsumeQueue": "50",
    "flushConsumeQueueLeastPages": "0",
    "flushConsumeQueueThoroughInterval": "300",
    "transactionTimeOut": "500",
    "transactionCheckInterval": "300",
    "transactionCheckMax": "1000",
}
"""Small files and short intervals: everything that can happen happens often."""
SLOTS = 500


class Refused(Exception):
    """The process ended before it served; the text is what it had to say."""


class BrokerProcess:
    """A broker with a name server on the store in ``folder/store``, always on the same ports."""

    clean_exit = 0
    """The exit code of a process that was asked to stop."""
    serving_line = b"store"
    """Part of the line on standard output that says that it serves."""
    recovery_s = 0.05
    """How long the interesting part of a start takes, from the first change of a file on."""

    def __init__(self, folder: Path, conf: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.conf = folder / "broker.conf"
        entries = {**CONF, **(conf or {})}
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in entries.items()))
        self._port, self._namesrv_port = free_ports(2)
        self.namesrv = f"127.0.0.1:{self._namesrv_port}"
        self.address = f"127.0.0.1:{self._port}"
        self.faults: Faults | None = None
        self.limits: dict[int, int] = {}
        """Limits of the next process, by the constants of the module ``resource``."""
        self._log = folder / "stderr.txt"
        self._said_before = 0
        self._process: asyncio.subprocess.Process | None = None

    def with_faults(self) -> Faults:
        """Let processes that start later suffer faults, once a test adds some."""
        self.faults = Faults(self.folder / "faults", self.store)
        return self.faults

    async def start(self) -> None:
        """Start it and wait until it serves; :class:`Refused` if it does not."""
        await self.begin()
        await self.ready()

    def mend(self) -> None:
        """Do by hand what a start needs that was refused after a kill; there is nothing."""

    async def begin(self) -> None:
        limits = dict(self.limits)

        def limit() -> None:
            for kind, value in limits.items():
                resource.setrlimit(kind, (value, value))

        with self._log.open("ab") as log:
            self._said_before = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment() | (self.faults.environment if self.faults else {}),
                preexec_fn=limit if limits else None,
            )

    def _command(self) -> list[str]:
        arguments = ["up", str(self.store), "-c", str(self.conf), "--port", str(self._port)]
        arguments += ["--namesrv-port", str(self._namesrv_port)]
        return [sys.executable, "-m", "firetrail", *arguments]

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    async def ready(self) -> None:
        """Wait until it serves; :class:`Refused` if it ends before."""
        assert self._process is not None and self._process.stdout is not None
        async with asyncio.timeout(START_S):
            line = b""
            while self.serving_line not in line:
                line = await self._process.stdout.readline()
                if not line:
                    code = await self.ended()
                    raise Refused(f"exit code {code}: {self.said[-2000:]}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def said(self) -> str:
        """The text that the last process has written to standard error."""
        return self._log.read_bytes()[self._said_before :].decode(errors="replace")

    async def ended(self) -> int:
        assert self._process is not None
        async with asyncio.timeout(START_S):
            return await self._process.wait()

    async def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return await self.ended()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            assert self._process is not None
            self._process.send_signal(number)

    async def close(self) -> None:
        """End it, whatever its state."""
        if self.is_running:
            await self.kill()
        if self.faults is not None:
            self.faults.close()
