"""The JSON files in a store's ``config`` folder, read and written as RocketMQ does.

The file before the last change stays beside it as ``.bak``, and is read if the file itself is
missing or cannot be understood. A crash at any moment leaves the one or the other content: the
file has its name all the time, and so neither depends on which of two names a disk loses first.

The last member is a checksum, which RocketMQ passes over and does not write: a bit that flips in an
offset or a name would give a file that reads as well as the right one.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from firetrail.errors import FormatError, ProtocolError, StoreError
from firetrail.format import config_json
from firetrail.format.names import CONFIG
from firetrail.remoting.body import Body
from firetrail.remoting.header import camel
from firetrail.system import System

CHECKSUM = "firetrailCrc"
"""The member with the CRC-32 of the file without it, in the form that Firetrail writes."""

ORDERS = "consumerOrderInfo.json"
"""The pops in order that wait to be acknowledged."""

Table = TypeVar("Table", bound=Body)

_log = logging.getLogger(__name__)


class ConfigFile:
    """One file, such as ``topics.json``. ``before`` is done before each write."""

    def __init__(
        self, system: System, root: Path, name: str, before: Callable[[], None] | None = None
    ) -> None:
        self._files = system.files
        self.path = root / CONFIG / name
        self._before = before
        self._backup = self.path.with_name(name + ".bak")
        self.is_ours = True
        """Whether Firetrail has written what was loaded, or nobody has written anything."""
        self._is_good = False  # whether the file itself, if it is there, can be understood

    def modified_ms(self) -> int | None:
        """When it was last written, None if it never was."""
        for path in (self.path, self._backup):
            try:
                return self._files.modified_ms(path)
            except FileNotFoundError:
                continue
        return None

    def load(self, kind: type[Table]) -> Table:
        """What it holds, nothing if it was never written.

        StoreError if it was, and neither it nor the one before can be understood: to go on with
        nothing would lose every offset or topic in silence.
        """
        problems = []
        for path in (self.path, self._backup):
            try:
                content = self._files.read(path)
            except FileNotFoundError:
                if path is self.path and self._backup.exists():
                    problems.append(f"{path}: is missing")
                continue
            try:
                table, is_ours = _understood(content, kind)
            except (FormatError, ProtocolError) as error:
                problems.append(f"{path}: {error}")
                continue
            for problem in problems:
                _log.warning(
                    "%s; %s is used instead, which lacks the last change", problem, path.name
                )
            self._is_good = path is self.path
            self.is_ours = is_ours
            return table
        if problems:
            raise StoreError(
                f"{'; '.join(problems)}; put a good copy back, or remove both to begin anew"
            )
        return kind()

    def save(self, value: dict[str, Any]) -> None:
        """Write it, durably."""
        if self._before is not None:
            self._before()
        content = _sealed(value)
        self._files.make_folder(self.path.parent)
        if self._is_good:
            self._files.replace(self._backup, self._files.read(self.path))
        self._files.replace(self.path, content)
        self._is_good = True


def change_file(
    system: System,
    root: Path,
    name: str,
    kind: type[Table],
    change: Callable[[Table], Sequence[object]],
) -> list[str]:
    """Change the table in a file of a broker that is not running.

    ``change`` says what it has done, and the file is written if that is anything. A file that
    cannot be read is left alone and named.
    """
    file = ConfigFile(system, root, name)
    try:
        table = file.load(kind)
    except StoreError as error:
        return [left_alone(error)]
    done = change(table)
    if done:
        file.save(table.to_json())
    return [str(line) for line in done]


def left_alone(error: StoreError) -> str:
    """What is said of a file that cannot be read, and so is not changed."""
    return f"the positions in it are left as they are: {error}"


def _sealed(value: dict[str, Any]) -> bytes:
    """The content of a file: the table, of which a large one is not written twice, and its CRC."""
    content = config_json.dumps(value).encode()
    member = f',\n\t"{CHECKSUM}":{zlib.crc32(content)}\n}}'
    return content.removesuffix(b"\n}") + member.encode()


def _understood(content: bytes, kind: type[Table]) -> tuple[Table, bool]:
    """The table in a file, and whether it has a checksum.

    FormatError or ProtocolError if it is not one, or not what was written. One without a checksum
    is RocketMQ's, or was edited. Its table must be there at least: read without it, a single wrong
    letter would make it an empty one.
    """
    value = config_json.loads(content)
    if not isinstance(value, dict):
        raise FormatError("config JSON", 0, "is no object")
    written = value.pop(CHECKSUM, None)
    if written is not None and written != zlib.crc32(config_json.dumps(value).encode()):
        raise FormatError(
            "config JSON",
            content.rfind(CHECKSUM.encode()),
            f"its checksum is another: damaged, or edited without removing the line {CHECKSUM}",
        )
    main = camel(fields(kind)[0].name)
    if value and main not in value:
        raise FormatError("config JSON", 0, f"has no {main}, which is all it is for")
    return kind.from_json(value), written is not None
