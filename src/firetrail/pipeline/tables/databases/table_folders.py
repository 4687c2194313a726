"""The folders of the tables of a database.

A table is in ``DATABASE/TABLE``, or in ``NAME`` if a tag or a column names it. Letters, digits,
``_`` and ``-`` of a name stay. All other characters are written as ``~`` and two hexadecimal digits
for each byte in UTF-8, because file systems, Delta or catalogs refuse them somewhere. So is a ``_``
at the beginning, which hides a folder, and that of an end ``__rejected`` in any case, by which
tables of rejected messages are known. An empty name is ``~``, and a long one ends in a hash.

Two folders never differ by case alone. The later one gets a number, such as ``orders~2``; tables
that are found at the same time come in the order of their names. The manifest keeps the folders, so
that a table stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.tables.files.table_manifest import MemberTable
from firetrail.pipeline.tables.files.table_place import REJECTED_SUFFIX, is_of_rejected

ESCAPE = "~"
_BYTES_MAX = 180
"""File systems allow 255 bytes; the names of rejected tables and numbers need some."""


def folder_name(name: str) -> str:
    """Return the folder for a name, without regard to other names."""
    suffix = ""
    if is_of_rejected(name):
        begin = len(name) - len(REJECTED_SUFFIX)
        name, suffix = name[:begin], _escaped("_") + name[begin + 1 :]
    letters = [letter if _stays(letter) else _escaped(letter) for letter in name]
    if letters and letters[0] == "_":
        letters[0] = _escaped("_")
    found = "".join(letters) + suffix or ESCAPE
    if len(found.encode()) <= _BYTES_MAX:
        return found
    digest = sha256(found.encode()).hexdigest()[:16]
    return f"{found.encode()[:_BYTES_MAX].decode(errors='ignore')}{ESCAPE}{digest}"


def _stays(letter: str) -> bool:
    return letter.isalnum() or letter in "_-"


def _escaped(letter: str) -> str:
    return "".join(f"{ESCAPE}{byte:02x}" for byte in letter.encode("utf-8", "surrogatepass"))


class TableFolders:
    """The folders of the tables that a database has, and those for new ones.

    Args:
        known: The tables.
        prefix: The beginning of the folders of new tables.
    """

    def __init__(self, known: Iterable[MemberTable], prefix: str) -> None:
        self._prefix = prefix
        self._folders = {member.name: member.folder for member in known}
        self._databases: dict[str, str] = {}
        for name, folder in self._folders.items():
            if "/" in folder:
                self._databases.setdefault(name.database, folder.partition("/")[0])
        self._taken = {folder.casefold() for folder in self._folders.values()}

    def folder(self, name: TableName, *, nested: bool) -> str:
        """Return the folder of a table, relative to that of the database.

        Args:
            name: The table.
            nested: Whether it is within a folder for its database.
        """
        found = self._folders.get(name)
        if found is None:
            parent = f"{self._database(name.database)}/" if nested else ""
            wanted = parent + folder_name(self._prefix + name.table)
            found = self._folders[name] = _free(wanted, self._taken)
            self._taken.add(found.casefold())
        return found

    def _database(self, name: str) -> str:
        if name not in self._databases:
            taken = {folder.casefold() for folder in self._databases.values()}
            self._databases[name] = _free(folder_name(name), taken)
        return self._databases[name]


def _free(wanted: str, taken: Iterable[str]) -> str:
    found, number, others = wanted, 2, set(taken)
    while found.casefold() in others:
        found, number = f"{wanted}{ESCAPE}{number}", number + 1
    return found
