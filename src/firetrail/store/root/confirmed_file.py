"""The end of the part of a log that replicas have confirmed, in a file that outlives a kill.

A member of a group must never remove what was confirmed, on the word of whichever master is
elected. It also has to know whether its own log has lost confirmed messages, so that another member
is elected. The watermark says the first only as of the last sync of the queues.

The file is written through a mapping: that costs no system call, so each confirmation is noted, and
what was noted survives the end of the process. The housekeeper syncs it with the watermark. After a
power failure it is therefore some seconds old, as the watermark is, but never too high.

The offset only grows, except when the log is cut by decision, or becomes the group's: then the
confirmed messages that it lacks are given up.
"""

from pathlib import Path

from firetrail.format.files.confirmed import (
    CONFIRMED_SIZE,
    NO_DOUBT,
    SLOT_SIZE,
    SLOTS,
    ConfirmedEnd,
    decode_confirmed,
    encode_slot,
)
from firetrail.format.names import CONFIRMED, OFFSET_MAX
from firetrail.system import System


def read_confirmed(system: System, root: Path) -> ConfirmedEnd | None:
    """Return the confirmed end of a store; None if it is not known."""
    try:
        found = decode_confirmed(system.files.read(root / CONFIRMED))
    except FileNotFoundError:
        return None
    return found[1] if found is not None else None


class ConfirmedFile:
    """Keeps the confirmed end of a store whose log replicas confirm.

    One thread at a time notes confirmations; any other one may call :meth:`sync`.

    Attributes:
        found: The content of the file when it was opened; None if it had none.
        end: The present content.
    """

    def __init__(self, system: System, root: Path) -> None:
        """Open the file, or create it; nothing is noted yet.

        Args:
            system: The operating system.
            root: The folder of the store, which the caller has locked.

        Raises:
            OSError: The file cannot be created, or there is no space.
        """
        self._files = files = system.files
        self._boot = system.clock.boot_id()
        path = root / CONFIRMED
        self._descriptor = files.open(path, writable=True, create=True)
        try:
            found = decode_confirmed(files.read_at(self._descriptor, 0, CONFIRMED_SIZE))
            files.set_size(self._descriptor, CONFIRMED_SIZE)
            files.allocate(self._descriptor, 0, CONFIRMED_SIZE)
            files.sync_folder(root)
            self._mapping = files.map(self._descriptor, CONFIRMED_SIZE, writable=True)
        except BaseException:
            files.close(self._descriptor)
            raise
        self._sequence, self.end = found or (0, ConfirmedEnd())
        self.found = self.end if found is not None else None
        self._synced = self._sequence

    @property
    def is_other_boot(self) -> bool:
        """Whether the machine has started again since the file was written."""
        found = self.found
        return found is not None and found.boot != self._boot

    def begin(
        self,
        log_end: int,
        *,
        is_decided: bool,
        by_java: bool = False,
        may_lack_tail: bool = False,
    ) -> None:
        """Note the log with which the store continues, durably.

        Args:
            log_end: The end of the log.
            is_decided: Whether this log counts, whatever was confirmed before: it is that of a
                master, or was cut by decision. What it lacks is given up.
            by_java: Whether RocketMQ has written to the log since, which does not know the file.
                Default: False.
            may_lack_tail: Whether the end of the log may have been lost. Default: False.

        Raises:
            OSError: The file cannot be synced.
        """
        end = self.end
        offset = max(end.offset, log_end) if end.is_all and not by_java else end.offset
        doubtful_from = end.doubtful_from
        if may_lack_tail and doubtful_from == NO_DOUBT:
            doubtful_from = log_end
        if is_decided or by_java:
            offset, doubtful_from = min(offset, log_end), NO_DOUBT
        self._write(ConfirmedEnd(offset, False, doubtful_from, self._boot))
        self.sync()

    def note(self, offset: int) -> None:
        """Note that the log was confirmed up to an offset; OFFSET_MAX if no replica has to."""
        end = self.end
        if offset == OFFSET_MAX:
            if not end.is_all:
                self._write(end._replace(is_all=True))
        elif offset > end.offset or end.is_all:
            self._write(end._replace(offset=max(offset, end.offset), is_all=False))

    def settle(self) -> None:
        """Note that the log has everything that its master knows to be confirmed."""
        if self.end.doubtful_from != NO_DOUBT:
            self._write(self.end._replace(doubtful_from=NO_DOUBT))

    def _write(self, end: ConfirmedEnd) -> None:
        sequence = self._sequence + 1
        slot = encode_slot(end, sequence)
        at = sequence % SLOTS * SLOT_SIZE
        self._mapping[at : at + len(slot)] = slot
        self.end, self._sequence = end, sequence

    def sync(self) -> None:
        """Bring the file to disk, if it has changed.

        Raises:
            OSError: It cannot be synced.
        """
        sequence = self._sequence
        if sequence != self._synced:
            self._files.sync(self._descriptor)
            self._synced = sequence

    def close(self) -> None:
        """Close the file."""
        self._mapping.close()
        self._files.close(self._descriptor)


def shorten_confirmed(system: System, root: Path, log_end: int) -> None:
    """Give up what a log has after an offset, before it is cut there by decision.

    Args:
        system: The operating system.
        root: The folder of the store, which the caller has locked.
        log_end: The new end of the log.

    Raises:
        OSError: The file cannot be written.
    """
    if not (root / CONFIRMED).exists():
        return
    file = ConfirmedFile(system, root)
    try:
        if file.found is not None:
            file.begin(log_end, is_decided=True)
    finally:
        file.close()
