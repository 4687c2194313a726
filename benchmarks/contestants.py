"""The measured stores: Firetrail and Java, each run in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop.peer import KILLED, RUN

from benchmarks.figures import Json
from firetrail.format.names import ABORT

ROOT = Path(__file__).parent.parent
JAVA_HEAP = "4g"
"""Twice what the peer takes by default: the batches of a run are encoded before it and kept."""
TIMEOUT_S = 1800


class RunError(Exception):
    """A run that gave no figures."""


@dataclass(frozen=True, slots=True)
class Java:
    """A release of the Java store; ``line`` is what the peer calls it."""

    line: str
    version: str

    @property
    def name(self) -> str:
        """For people."""
        return f"Java {self.version}"

    def run(self, command: str, store: Path, *options: object, kill: bool = False) -> Json:
        """Return the figures of a ``bench-`` command of the peer; ``kill`` ends it as a crash."""
        words = (RUN, self.line, command, store, *options, *(["--kill"] if kill else []))
        dies = kill or (command == "bench-recover" and (store / ABORT).exists())
        figures = _run(
            [str(word) for word in words], KILLED if dies else 0, FIRETRAIL_JAVA_HEAP=JAVA_HEAP
        )
        if figures.get("not_ok"):
            raise RunError(f"{self.name} {command}: puts were refused: {figures['not_ok']}")
        return figures


JAVAS = (Java("v4", "4.9.8"), Java("v5", "5.5.1"))


def firetrail(command: str, store: Path, **arguments: Any) -> Json:
    """Return the figures of a command of the worker."""
    text = json.dumps({"folder": str(store), **arguments})
    code = -signal.SIGKILL if arguments.get("kill") else 0
    return _run([sys.executable, "-m", "benchmarks.worker", command, text], code)


def _run(command: list[str], code: int, **environment: str) -> Json:
    """Return the last line that a process prints, which must end with exit status ``code``."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
    )
    lines = done.stdout.splitlines()
    if done.returncode != code or not lines:
        raise RunError(f"{' '.join(command)}: ended with {done.returncode}\n{done.stderr[-4000:]}")
    figures: Json = json.loads(lines[-1])
    return figures
