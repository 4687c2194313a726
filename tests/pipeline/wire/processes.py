"""A broker in a separate process, to be killed and restarted at the same address."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.ports import free_ports


class BrokerProcess:
    """``firetrail up`` on ``folder/store``, or ``firetrail broker`` for another name server."""

    def __init__(self, folder: Path, namesrv: str = "", conf: str = "") -> None:
        port, own = free_ports(2)
        self.namesrv = namesrv or f"127.0.0.1:{own}"
        self._conf = folder / "broker.conf"
        self._conf.write_text(f"mappedFileSizeCommitLog=8388608\nvip_channel=false\n{conf}")
        kind = "broker" if namesrv else "up"
        where = ["--namesrv", namesrv] if namesrv else ["--namesrv-port", str(own)]
        arguments = [kind, str(folder / "store"), "-c", str(self._conf), "--port", str(port)]
        self._command = [sys.executable, "-m", "firetrail", *arguments, *where]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("store"):
                return
        raise AssertionError(f"exit code {self._process.wait()}")

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @contextmanager
    def away(self, seconds: float) -> Iterator[None]:
        """Kill the broker at the start of the block, and restart it after a while."""
        self.kill()
        back = threading.Timer(seconds, self.start)
        back.start()
        try:
            yield
        finally:
            back.join()
