"""The file ``firetrail.sink``: the last commit of each writer that numbers its bulk appends.

Before a commit, the file describes the record that is about to appear, and its position; after it,
that it did. A process that was killed in between leaves a pending note, and the log shows whether
that commit happened::

    {"writers": {id: number},
     "commits": {id: {"source", "messages", "start", "end"}},
     "pending": {"writer", "number", "source", "messages", "start", "end",
                 "head_at", "head", "record_at", "record_size", "record_sha256"} or null}

``commits`` describes the commit with the number in ``writers``. It was added later, so there may be
none for a writer.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from firetrail.errors import StoreError
from firetrail.format.names import SINK
from firetrail.system import System


class Ticket(NamedTuple):
    """The id of a writer, and the number of its batch; numbers increase."""

    writer: str
    number: int
    source: str | None = None
    """The id of the source that the writer numbers, such as a query; None if it has none."""


class Commit(NamedTuple):
    """A numbered append that is committed, or about to be."""

    writer: str
    number: int
    source: str | None
    messages: int
    start: int
    """The physical offset at which the log ended before it."""
    end: int


_DETAILS = ("source", "messages", "start", "end")


class Journal:
    """The file; the module describes it."""

    def __init__(self, system: System, root: Path) -> None:
        self._files = system.files
        self._path = root / SINK
        try:
            found = json.loads(self._files.read(self._path))
            self._writers: dict[str, int] = dict(found["writers"])
            self._commits: dict[str, dict[str, Any]] = dict(found.get("commits", {}))
            self._pending: dict[str, Any] | None = found["pending"]
        except FileNotFoundError:
            self._writers, self._commits, self._pending = {}, {}, None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._path}: cannot be read ({error}), so it is unknown which batches were "
                "committed; restore the file, or remove it to start over"
            ) from error

    def has(self, ticket: Ticket) -> bool:
        """Return whether this number, or a later one, was committed."""
        return self._writers.get(ticket.writer, -1) >= ticket.number

    @property
    def numbers(self) -> Mapping[str, int]:
        """The last number that each writer has committed."""
        return self._writers

    def last_commit(self, writer: str) -> Commit | None:
        """Return the last commit of a writer; None if none is known in detail."""
        details = self._commits.get(writer)
        if details is None:
            return None
        return Commit(writer, self._writers[writer], *(details[name] for name in _DETAILS))

    def settle(self, is_published: Callable[[dict[str, Any]], bool]) -> None:
        """Resolve the pending note of a process that was killed."""
        if self._pending is None:
            return
        note, self._pending = self._pending, None
        if is_published(note):
            self._enter(note)
        self._save()

    def announce(
        self, commit: Commit | None, head_at: int, head: bytes, record_at: int, record: bytes
    ) -> None:
        """Record durably that a commit is about to be made."""
        if commit is None:
            return
        self._pending = {
            **commit._asdict(),
            "head_at": head_at,
            "head": head.hex(),
            "record_at": record_at,
            "record_size": len(record),
            "record_sha256": hashlib.sha256(record).hexdigest(),
        }
        self._save()

    def conclude(self, commit: Commit | None) -> None:
        """Record durably that it was committed."""
        if commit is None:
            return
        self._pending = None
        self._enter(commit._asdict())
        self._save()

    def _enter(self, commit: Mapping[str, Any]) -> None:
        writer = commit["writer"]
        self._writers[writer] = commit["number"]
        if all(name in commit for name in _DETAILS):
            self._commits[writer] = {name: commit[name] for name in _DETAILS}
        else:  # the note of an earlier version
            self._commits.pop(writer, None)

    def _save(self) -> None:
        content = {"writers": self._writers, "commits": self._commits, "pending": self._pending}
        self._files.replace(self._path, json.dumps(content).encode())
