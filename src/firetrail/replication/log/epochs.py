"""The epochs of a log: which master wrote which part of it.

Every time a broker becomes master, an *epoch* begins at the end of its log. Epochs have growing
numbers, and each number belongs to one master. Two logs that contain an epoch with the same number
and start are therefore equal up to the point where the first of them leaves that epoch.

The list is kept in RocketMQ's file, ``epochFileCheckpoint``, so that a Java broker in controller
mode can take over the folder, and the reverse.
"""

import logging
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import FormatError, StoreError
from firetrail.format.names import EPOCHS, EPOCHS_BACKUP
from firetrail.format.values.integers import number_in
from firetrail.system import System

EPOCHS_MAX = 65_536
"""Maximum number of epochs in a list. A longer list drops its oldest ones."""
NUMBER_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1
UNCHECKED = 0
"""The checksum of a file that has none."""
_CRC_MASK = 0x7FFFFFFF
_HEADER_LINES = 2

_log = logging.getLogger(__name__)


class Epoch(NamedTuple):
    """The time of one master.

    Attributes:
        number: Its number, which is larger than those of earlier epochs.
        start_offset: The physical offset at which the master began to append.
    """

    number: int
    start_offset: int


def check_epochs(epochs: Sequence[Epoch]) -> str | None:
    """Return the fault of a list of epochs; None if it is valid."""
    for epoch in epochs:
        if not (0 <= epoch.number <= NUMBER_MAX and 0 <= epoch.start_offset <= OFFSET_MAX):
            return f"epoch {epoch.number} from offset {epoch.start_offset} is out of range"
    for one, following in pairwise(epochs):
        if following.number <= one.number or following.start_offset <= one.start_offset:
            return (
                f"epoch {following.number} from offset {following.start_offset} cannot follow "
                f"epoch {one.number} from offset {one.start_offset}: both must grow"
            )
    if len(epochs) > EPOCHS_MAX:
        return f"{len(epochs)} epochs are more than {EPOCHS_MAX}"
    return None


def common_point(
    own: Sequence[Epoch], own_end: int, other: Sequence[Epoch], other_end: int
) -> int | None:
    """Return the offset up to which two logs are equal, as their epochs prove it.

    Returns None if they have no epoch in common, for example because one list is empty. The lists
    then prove nothing, and the records themselves have to be compared. (A Java slave without a list
    follows its master unchecked.)

    Args:
        own: The epochs of one log, oldest first.
        own_end: The physical offset of its end.
        other: The epochs of the other log.
        other_end: The physical offset of its end.
    """
    other_ends = dict(_with_ends(other, other_end))
    for epoch, end in reversed(_with_ends(own, own_end)):
        if epoch in other_ends:
            return min(end, own_end, other_ends[epoch], other_end)
    return None


def _with_ends(epochs: Sequence[Epoch], end: int) -> list[tuple[Epoch, int]]:
    starts = [epoch.start_offset for epoch in epochs[1:]]
    return list(zip(epochs, [*starts, end], strict=True)) if epochs else []


# -- the file ------------------------------------------------------------------------------------


def encode_epochs(epochs: Iterable[Epoch]) -> bytes:
    """Return the content of a file: the number of epochs, a checksum, and a line for each epoch."""
    lines = [b"%d-%d\n" % epoch for epoch in epochs]
    entries = b"".join(lines)
    return b"%d\n%d\n%b" % (len(lines), zlib.crc32(entries) & _CRC_MASK, entries)


def decode_epochs(content: bytes) -> tuple[Epoch, ...]:
    """Return the epochs in a file, oldest first.

    Raises:
        FormatError: The content is damaged, or has no epochs. Java then reads the backup, too.
    """
    lines = content.splitlines(keepends=True)
    if len(lines) <= _HEADER_LINES:
        raise FormatError("epoch file", 0, "has no epochs")
    count, checksum = (_number(line, 0) for line in lines[:_HEADER_LINES])
    offset = sum(map(len, lines[:_HEADER_LINES]))
    if len(lines) - _HEADER_LINES != count:
        raise FormatError(
            "epoch file", 0, f"has {len(lines) - _HEADER_LINES} epochs instead of {count}"
        )
    if checksum not in (UNCHECKED, zlib.crc32(content[offset:]) & _CRC_MASK):
        raise FormatError("epoch file", offset, "the checksum does not match the epochs")
    epochs = []
    for line in lines[_HEADER_LINES:]:
        number, _, start = line.partition(b"-")
        epochs.append(Epoch(_number(number, offset), _number(start, offset)))
        offset += len(line)
    if problem := check_epochs(epochs):
        raise FormatError("epoch file", 0, problem)
    return tuple(epochs)


def _number(text: bytes, offset: int) -> int:
    text = text.rstrip(b"\r\n")
    number = number_in(text.decode("latin-1"), 0)
    if number is None:
        raise FormatError("epoch file", offset, f"{text[:40]!r} is not a number")
    return number


class EpochFile:
    """The epochs of a store, in the file ``epochFileCheckpoint`` and its ``.bak``.

    The backup is read if the file is missing or damaged. Java keeps the previous list in it and
    syncs neither file; Firetrail writes the new list into both, the backup first, and each of them
    atomically. A crash leaves the old or the new list.

    A log and its list cannot be changed in one step. Note an epoch before its first record, and
    truncate the log before the list. After a crash the list may then have epochs that begin at or
    after the end of the log, but never lacks one: :meth:`truncate` removes them.

    A store has one such object. Its methods may be called from any thread.

    Attributes:
        epochs: The list, oldest first. The tuple is replaced, never changed.
        is_complete: False if only the backup of another program could be read, which may lack the
            newest epoch. The end of the last epoch in the list is then not known.
    """

    def __init__(self, system: System, root: Path) -> None:
        """Read the file.

        Args:
            system: The operating system.
            root: The folder of the store.

        Raises:
            StoreError: Neither the file nor its backup can be decoded.
        """
        self._files = system.files
        self._path = root / EPOCHS
        self._backup = root / EPOCHS_BACKUP
        self._guard = system.threads.lock()
        self.is_complete = True
        self.epochs = self._load()

    @property
    def last(self) -> Epoch | None:
        """The newest epoch, None if there is none."""
        return self.epochs[-1] if self.epochs else None

    @property
    def number(self) -> int:
        """The number of the newest epoch, 0 if there is none."""
        return self.epochs[-1].number if self.epochs else 0

    def common_point(self, own_end: int, other: Sequence[Epoch], other_end: int) -> int | None:
        """Return :func:`common_point` of this list, whose log ends at ``own_end``, and another."""
        if not self.is_complete:
            return None
        return common_point(self.epochs, own_end, other, other_end)

    def append(self, epoch: Epoch) -> None:
        """Note that an epoch begins, at the end of the log.

        Epochs of the list that begin there, too, have ended without a record. They are removed,
        because Java refuses two epochs with one start.

        Raises:
            StoreError: The number is not larger than that of the last epoch.
        """
        with self._guard:
            last = self.last
            if last is not None and last.number >= epoch.number:
                raise StoreError(
                    f"{self._path}: epoch {epoch.number} cannot begin, because epoch {last.number} "
                    "has begun before; let a new election give the master a larger number"
                )
            kept = [each for each in self.epochs if each.start_offset < epoch.start_offset]
            self._write((*kept, epoch)[-EPOCHS_MAX:])

    def truncate(self, end: int) -> None:
        """Forget the epochs that begin at or after ``end``, which is the end of the log."""
        with self._guard:
            kept = tuple(epoch for epoch in self.epochs if epoch.start_offset < end)
            if kept != self.epochs:
                self._write(kept)

    def save(self, epochs: Iterable[Epoch]) -> None:
        """Write another list; nothing is written if it is the current one.

        Raises:
            StoreError: The list is not valid.
        """
        epochs = tuple(epochs)
        with self._guard:
            if epochs != self.epochs or not self.is_complete:
                self._write(epochs)
            self.is_complete = True

    def _write(self, epochs: tuple[Epoch, ...]) -> None:
        if problem := check_epochs(epochs):
            raise StoreError(f"{self._path}: {problem}")
        if epochs:
            content = encode_epochs(epochs)
            self._files.replace(self._backup, content)
            self._files.replace(self._path, content)
        else:  # Java reads the backup of an empty file, so neither file may exist
            for path in (self._backup, self._path):
                if path.exists():
                    self._files.remove(path)
        self.epochs = epochs

    def _load(self) -> tuple[Epoch, ...]:
        problems = []
        for path in (self._path, self._backup):
            try:
                epochs = decode_epochs(self._files.read(path))
            except FileNotFoundError:
                continue
            except FormatError as error:
                problems.append(f"{path}: {error}")
                continue
            if path is self._backup:
                self.is_complete = False
                _log.warning(
                    "%s; %s is used instead, which may lack the last epoch",
                    problems[0] if problems else f"{self._path} is missing",
                    path.name,
                )
            return epochs
        if problems:
            raise StoreError(
                f"{'; '.join(problems)}; restore a good copy, or remove the file and its backup: "
                "the log is then compared with the master's record by record"
            )
        return ()
