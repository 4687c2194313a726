"""The JSON files in a store's ``config`` folder, read and written as RocketMQ does.

The previous version of a file is kept as ``.bak``. It is read if the file itself is missing or
cannot be decoded. A crash at any moment leaves the old or the new content: the file never loses its
name, so the outcome does not depend on which of two renames reaches the disk first.

The last member is a checksum, which RocketMQ ignores and does not write. Without it, a flipped bit
in an offset or a name would go unnoticed.
"""

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from firetrail.errors import FormatError, ProtocolError, StoreError
from firetrail.format.files import config_json
from firetrail.format.names import CONFIG
from firetrail.system import System
from firetrail.text import camel

CHECKSUM = "firetrailCrc"
"""The member with the CRC-32 of the file without it, in the form that Firetrail writes."""

ORDERS = "consumerOrderInfo.json"
"""The file with the ordered pops that are not acknowledged."""

CONSUMER_FILTERS = "consumerFilter.json"
"""The file with the SQL92 filters of consumer groups."""

REQUEST_MODES = "messageRequestMode.json"
"""The file with the modes (pull or pop) of consumer groups."""

_START_EMPTY = "restore a good copy, or remove both to start empty"

_log = logging.getLogger(__name__)


class JsonTable(Protocol):
    """A table in a file: a dataclass whose fields all have defaults."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Convert parsed JSON; raise ProtocolError if it is not such a table."""

    def to_json(self) -> dict[str, Any]:
        """Convert to dicts, lists and plain values."""


Table = TypeVar("Table", bound=JsonTable)


@dataclass(frozen=True, slots=True)
class _FoundFile(Generic[Table]):
    """The table that was read and its path; an empty table without a path if no file exists."""

    table: Table
    is_ours: bool
    path: Path | None
    problems: list[str]


class ConfigFile:
    """One file, such as ``topics.json``. ``before`` is called before each write."""

    def __init__(
        self, system: System, root: Path, name: str, before: Callable[[], None] | None = None
    ) -> None:
        self._files = system.files
        self.path = root / CONFIG / name
        self._before = before
        self._backup = self.path.with_name(name + ".bak")
        self.is_ours = True
        """Whether Firetrail has written the loaded content, or there is no file yet."""
        self._is_good = False  # whether the file itself exists and can be decoded

    def modified_ms(self) -> int | None:
        """Return when the file was last written, None if it never was."""
        for path in (self.path, self._backup):
            try:
                return self._files.modified_ms(path)
            except FileNotFoundError:
                continue
        return None

    def load(self, kind: type[Table]) -> Table:
        """Return the table in the file, an empty one if it was never written.

        StoreError is raised if neither the file nor its backup can be decoded: continuing with an
        empty table would silently lose every offset or topic.
        """
        found = self._find(kind)
        if found.path is None:
            if found.problems:
                raise StoreError(f"{'; '.join(found.problems)}; {_START_EMPTY}")
            return kind()
        for problem in found.problems:
            _log.warning(
                "%s; %s is used instead, which may lack the last change", problem, found.path.name
            )
        self._is_good = found.path is self.path
        self.is_ours = found.is_ours
        return found.table

    def _find(self, kind: type[Table]) -> _FoundFile[Table]:
        """Return the table in the file or else in its backup, and why others were skipped."""
        problems = []
        for path in (self.path, self._backup):
            try:
                content = self._files.read(path)
            except FileNotFoundError:
                if path is self.path and self._backup.exists():
                    problems.append(f"{path}: is missing")
                continue
            try:
                table, is_ours = _decoded(content, kind)
            except (FormatError, ProtocolError) as error:
                problems.append(f"{path}: {error}")
                continue
            return _FoundFile(table, is_ours, path, problems)
        return _FoundFile(kind(), True, None, problems)

    def fault(self, kind: type[Table]) -> str | None:
        """Return why the file cannot be decoded, and the remedy; None if it can, or is missing."""
        try:
            found = self._find(kind)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if not found.problems or (found.path is not None and not self.path.exists()):
            return None
        why = "; ".join(found.problems)
        if found.path is None:
            return f"{why}; a broker refuses to start; {_START_EMPTY}"
        return (
            f"{why}; a broker uses {found.path.name} instead, which may lack the last change; "
            "restore a good copy first if there is one"
        )

    def save(self, value: dict[str, Any]) -> None:
        """Write the file durably."""
        if self._before is not None:
            self._before()
        content = _sealed(value)
        self._files.make_folder(self.path.parent)
        if self._is_good:
            self._files.replace(self._backup, self._files.read(self.path))
        self._files.replace(self.path, content)
        self._is_good = True

    def save_both(self, value: dict[str, Any]) -> None:
        """Write the file and its backup, for a table whose previous version must not come back."""
        self.save(value)
        self.save(value)

    def remove(self) -> None:
        """Remove the file and its backup."""
        self._is_good = False
        for path in (self._backup, self.path):  # the backup first: it must not count alone
            if path.exists():
                self._files.remove(path)


def change_file(
    system: System,
    root: Path,
    name: str,
    kind: type[Table],
    change: Callable[[Table], Sequence[object]],
) -> list[str]:
    """Change the table in a file of a broker that is not running.

    ``change`` returns a line for each change. The file is written if there is any. A file that
    cannot be read is not changed; the returned lines then name it.
    """
    file = ConfigFile(system, root, name)
    try:
        table = file.load(kind)
    except StoreError as error:
        return [unchanged(error)]
    done = change(table)
    if done:
        file.save(table.to_json())
    return [str(line) for line in done]


def unchanged(error: StoreError) -> str:
    """Return the report line for a file that cannot be read and so is not changed."""
    return f"the positions in this file were not changed: {error}"


def _sealed(value: dict[str, Any]) -> bytes:
    """Return the content of a file: the table, encoded only once, and its CRC."""
    content = config_json.dumps(value).encode()
    member = f',\n\t"{CHECKSUM}":{zlib.crc32(content)}\n}}'
    return content.removesuffix(b"\n}") + member.encode()


def _decoded(content: bytes, kind: type[Table]) -> tuple[Table, bool]:
    """Return the table in a file, and whether it has a checksum.

    FormatError or ProtocolError is raised if the content is not a table or has changed since it was
    written. A file without a checksum was written by RocketMQ, or edited. It must at least have the
    main member; otherwise a single wrong letter in that name would make the table an empty one.
    """
    value = config_json.loads(content)
    if not isinstance(value, dict):
        raise FormatError("config JSON", 0, "is not an object")
    written = value.pop(CHECKSUM, None)
    if written is not None and written != zlib.crc32(config_json.dumps(value).encode()):
        raise FormatError(
            "config JSON",
            content.rfind(CHECKSUM.encode()),
            "the checksum does not match: the file is damaged, or was edited without removing "
            f"the line {CHECKSUM}",
        )
    main = camel(fields(kind)[0].name)
    if value and main not in value:
        raise FormatError("config JSON", 0, f"has no member {main}")
    return kind.from_json(value), written is not None
