"""What the commands that serve until they are stopped have in common."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from firetrail.format.hosts import PORT_MAX
from firetrail.format.java_properties import Entry, parse_properties
from firetrail.storage.system import allow_many_files

T = TypeVar("T")


def read_conf(path: Path | None) -> dict[str, Entry]:
    """The keys of a ``.conf`` file; none without a file."""
    if path is None:
        return {}
    return parse_properties(path.read_bytes().decode("utf-8-sig", "replace"), str(path))


def report(remarks: Iterable[object]) -> None:
    """Say on standard error what of a file has no effect."""
    for remark in remarks:
        print(f"firetrail: {remark}", file=sys.stderr)


def port(text: str) -> int:
    """An argument that is a port, or 0 for a free one."""
    value = int(text)
    if not 0 <= value <= PORT_MAX:
        raise ValueError
    return value


def run(serving: Coroutine[Any, Any, T]) -> T:
    """Run it, with warnings on standard error; on uvloop, which is faster, if that is installed."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    allow_many_files()  # every queue and every connection is one
    if find_spec("uvloop") is None:
        return asyncio.run(serving)
    import uvloop

    return uvloop.run(serving)


def told_to_stop() -> asyncio.Event:
    """Set when the process is told to stop: by SIGTERM, or from the keyboard.

    Ask for it before anybody can know that the process serves.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    return told
