"""What the commands that serve until they are stopped have in common."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import signal
import sys
from collections.abc import Coroutine, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from firetrail.errors import AddressInUseError
from firetrail.format.hosts import PORT_MAX
from firetrail.format.java_properties import Entry, parse_properties
from firetrail.system import SYSTEM, allow_many_files

T = TypeVar("T")


def read_conf(path: Path | None) -> dict[str, Entry]:
    """The keys of a ``.conf`` file; none without a file."""
    if path is None:
        return {}
    return parse_properties(SYSTEM.files.read(path).decode("utf-8-sig", "replace"), str(path))


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
    """Run it; on uvloop, which is faster, if that is installed."""
    allow_many_files()  # every queue and every connection is one
    try:
        if find_spec("uvloop") is None:
            return asyncio.run(serving)
        import uvloop

        return uvloop.run(serving)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        remedy = "another broker or name server? stop it, or choose other ports (--help says how)"
        raise AddressInUseError(f"{error.strerror}; {remedy}") from None


def add_json(parser: argparse.ArgumentParser) -> None:
    """For programs that start a server, and read where it listens."""
    parser.add_argument("--json", action="store_true", help="addresses as one JSON object")


def tell(found: dict[str, str], as_json: bool, hints: Mapping[str, str] | None = None) -> None:
    """Say where what is served can be reached: a line each, with a hint, or one of JSON."""
    if as_json:
        print(
            json.dumps({name.replace(" ", "_"): place for name, place in found.items()}), flush=True
        )
        return
    for name, place in found.items():
        hint = (hints or {}).get(name)
        print(f"{name:<11}  {place}   {hint}" if hint else f"{name:<11}  {place}")
    sys.stdout.flush()


def told_to_stop() -> asyncio.Event:
    """Set when the process is told to stop: by SIGTERM, or from the keyboard.

    Ask for it before anybody can know that the process serves.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    return told
