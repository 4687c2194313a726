"""Arguments, start and stop of the commands that run servers."""

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import Coroutine, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from firetrail.access.access_settings import SECRET_KEYS
from firetrail.access.user_store import IGNORE_USERS
from firetrail.format.files.java_properties import Entry, parse_properties
from firetrail.format.values.hosts import PORT_MAX
from firetrail.format.values.integers import parse_whole
from firetrail.system import SYSTEM, allow_many_files
from firetrail.tls.certificates import check_private

SWITCH_S = 0.001
"""The time that another thread may keep the interpreter lock while the event loop waits for it.
With 5 ms, Python's default, a thread that saves offsets or counts messages delays clients
noticeably."""

T = TypeVar("T")


def read_conf(path: Path | None) -> dict[str, Entry]:
    """Return the keys of a ``.conf`` file; none if ``path`` is None.

    Raises:
        ConfigError: Others can read a file with a secret, or it is not valid.
        OSError: It cannot be read.
    """
    if path is None:
        return {}
    text = SYSTEM.files.read(path).decode("utf-8", "replace")
    entries = parse_properties(text, str(path))
    for key in entries.keys() & SECRET_KEYS:
        if entries[key].text:
            check_private(f"file with {key}", str(path))
    return entries


def report(remarks: Iterable[object]) -> None:
    """Print remarks about a configuration file, such as keys without effect, to standard error."""
    for remark in remarks:
        print(f"firetrail: {remark}", file=sys.stderr)


def port(text: str) -> int:
    """Parse an argument that is a port, or 0 for a free one."""
    return parse_whole(text, most=PORT_MAX)


def run(serving: Coroutine[Any, Any, T]) -> T:
    """Run a server; on uvloop, which is faster, if that is installed."""
    allow_many_files()  # every queue and every connection needs a descriptor
    sys.setswitchinterval(SWITCH_S)
    if find_spec("uvloop") is None:
        return asyncio.run(serving)
    import uvloop

    return uvloop.run(serving)


def add_listening(parser: argparse.ArgumentParser, default_host: str, default_port: str) -> None:
    """Add ``--host`` and ``--port`` of a broker; the help contains the defaults."""
    parser.add_argument(
        "--host", metavar="ADDRESS", help=f"address to listen on (default: {default_host})"
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=port,
        help=f"port of the broker, 0 for a free one (default: {default_port})",
    )


def add_conf(parser: argparse.ArgumentParser, name: str) -> None:
    """Add ``-c FILE``; ``name`` is that of the file in RocketMQ."""
    parser.add_argument(
        "-c",
        "--conf",
        metavar="FILE",
        type=Path,
        help=f"configuration file, in the format of RocketMQ's {name}",
    )


def add_insecure(parser: argparse.ArgumentParser) -> None:
    """Add ``--insecure``."""
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond this machine although access control is switched off: every client "
        "that reaches the ports can do everything",
    )


def add_ignore_users(parser: argparse.ArgumentParser) -> None:
    """Add ``--ignore-users``."""
    parser.add_argument(
        IGNORE_USERS,
        action="store_true",
        help="start without access control although the store has users, whose permissions are "
        "then not checked",
    )


def add_json(
    parser: argparse.ArgumentParser, prints: str = "print the addresses as a JSON object"
) -> None:
    """Add ``--json``, for programs that start a server and read where it listens."""
    parser.add_argument("--json", action="store_true", help=prints)


def announce(found: dict[str, str], as_json: bool, hints: Mapping[str, str] | None = None) -> None:
    """Print the address of each server, on a line with a hint, or all as one JSON object.

    Objects that exist when all servers run live until they stop. The garbage collector ignores them
    from then on, because it would otherwise delay requests by tens of milliseconds.
    """
    gc.freeze()
    if as_json:
        print(
            json.dumps({name.replace(" ", "_"): place for name, place in found.items()}), flush=True
        )
        return
    for name, place in found.items():
        hint = (hints or {}).get(name)
        print(f"{name:<11}  {place}   {hint}" if hint else f"{name:<11}  {place}")
    sys.stdout.flush()
