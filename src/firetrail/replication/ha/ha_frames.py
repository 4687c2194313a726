"""The frames of RocketMQ's classic HA protocol, without any I/O.

A slave connects to the HA port of its master. It sends *reports*: 8 bytes with the offset at which
its own log ends. The master sends *transfers*: a header of 12 bytes with a physical offset and a
size, followed by that many bytes of its commit log. A transfer without bytes is a heartbeat.

Four frames are Firetrail's own. A replica that knows its master to be Firetrail first
authenticates itself, if it has credentials: AUTHENTICATION, a length, and signed fields as JSON.
Then it introduces itself before its first report: INTRODUCTION, its number if it is a member of a
group with failover, and the identity of its store with all bits inverted. As reports these are
negative offsets, which a Java master would ignore. A member of a group that is about to stop sends
FAREWELL in the place of a report. A replica that has introduced itself gets *confirmations*: the
header of a transfer without bytes whose offset has all bits inverted, so that it is negative.
Before this offset, the replica may show the log to consumers.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import NamedTuple

from firetrail.errors import ProtocolError
from firetrail.format.names import OFFSET_MAX

REPORT = Struct(">q")
HEADER = Struct(">qi")
INTRODUCTION = b"\x80FTM"
AUTHENTICATION = b"\x80FTA"
FAREWELL = b"\x80FTL\0\0\0\0"
AUTHENTICATION_MAX = 4096
"""Maximum size of the signed fields in bytes."""
MEMBER_MAX = (1 << 31) - 1
NO_IDENTITY = 0
"""The identity of a replica that has not sent one."""
OFFSET_MIN = ~OFFSET_MAX
BODY_MAX = (4 << 20) - HEADER.size
"""Maximum size of a transfer in bytes. A Java slave has a buffer of 4 MiB for a whole frame."""
FROM_THE_START = 1
"""The first report of a replica that wants a master's whole log from offset 0.

A master takes a report of 0 for "only the last file". The byte before offset 1 is known: a record
begins with its size, and the first byte of that is 0 for any record below 16 MiB. If it is not, the
check of the first record fails.
"""


def log_end(offset: int) -> int:
    """Return the end of a peer's log, which it reported as ``offset``.

    FROM_THE_START means an empty log.
    """
    return 0 if offset == FROM_THE_START else offset


class Piece(NamedTuple):
    """Bytes of the master's log, at their physical offset. A heartbeat has no bytes."""

    offset: int
    content: memoryview

    @property
    def confirmed(self) -> int:
        """The offset that this piece confirms; -1 if it is not a confirmation."""
        return ~self.offset if self.offset < 0 else -1


def encode_report(offset: int) -> bytes:
    """Return the report of a replica whose log ends at ``offset``."""
    return REPORT.pack(offset)


def identity_number(identity: str) -> int:
    """Return the number that encodes the identity of a store in an introduction.

    Args:
        identity: The text that stays with the store; empty if it has none.
    """
    if not identity:
        return NO_IDENTITY
    digest = hashlib.blake2b(identity.encode(), digest_size=REPORT.size).digest()
    return int.from_bytes(digest, "big") & OFFSET_MAX


def encode_introduction(member: int, identity: int = NO_IDENTITY) -> bytes:
    """Return the frame with which a Firetrail replica introduces itself to a Firetrail master.

    Args:
        member: The number of the replica in its group; 0 if it is in none.
        identity: The number of its store; see :func:`identity_number`. Default: NO_IDENTITY.
    """
    return INTRODUCTION + member.to_bytes(4, "big") + REPORT.pack(~identity)


def encode_authentication(fields: Mapping[str, str]) -> bytes:
    """Return the first frame of a replica whose master requires signatures."""
    content = json.dumps(fields).encode()
    return AUTHENTICATION + len(content).to_bytes(4, "big") + content


def authentication_size(first: bytes) -> int | None:
    """Return the size of the signed fields after the first report; None if it is a real report.

    Raises:
        ProtocolError: There are too many.
    """
    if not first.startswith(AUTHENTICATION):
        return None
    size = int.from_bytes(first[4:], "big")
    if size > AUTHENTICATION_MAX:
        raise ProtocolError(f"the replica sends {size} bytes to authenticate itself")
    return size


def decode_authentication(content: bytes) -> Mapping[str, str]:
    """Return the signed fields; raise ProtocolError if they are malformed."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not all(isinstance(text, str) for text in fields.values()):
        raise ProtocolError("the replica sends something else than signed fields")
    return fields


def introduced_member(offset: int) -> int | None:
    """Return the member that introduces itself with this "report"; None if it is not one."""
    content = REPORT.pack(offset)
    return int.from_bytes(content[4:], "big") if content.startswith(INTRODUCTION) else None


def is_farewell(offset: int) -> bool:
    """Return whether a "report" says that the member is about to stop."""
    return REPORT.pack(offset) == FAREWELL


def encode_header(offset: int, size: int) -> bytes:
    """Return the header of a transfer of ``size`` bytes at ``offset``."""
    return HEADER.pack(offset, size)


def encode_confirmation(offset: int) -> bytes:
    """Return the frame that lets a replica show the log before ``offset``."""
    return encode_header(~offset, 0)


class TransferReader:
    """Splits the stream of a master into pieces of its log.

    A piece may be part of a transfer, so that no transfer has to be kept in memory as a whole.
    """

    def __init__(self, *, confirmations: bool = False) -> None:
        """Begin with a new connection.

        Args:
            confirmations: Whether the replica has introduced itself, which makes the master send
                confirmations. Default: False.
        """
        self._least_offset = OFFSET_MIN if confirmations else 0
        self._header = bytearray()
        self._offset = 0
        self._left = 0

    def feed(self, data: memoryview) -> Iterator[Piece]:
        """Yield the pieces in ``data``, which are slices of it.

        Raises:
            ProtocolError: The bytes are not a transfer.
        """
        at = 0
        while at < len(data):
            if self._left:
                content = data[at : at + self._left]
                yield Piece(self._offset, content)
                self._offset += len(content)
                self._left -= len(content)
                at += len(content)
                continue
            missing = HEADER.size - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == HEADER.size:
                self._begin()
                if not self._left:
                    yield Piece(self._offset, data[:0])

    def _begin(self) -> None:
        self._offset, self._left = HEADER.unpack(self._header)
        self._header.clear()
        least = self._least_offset if self._left == 0 else 0
        if self._offset < least or not 0 <= self._left <= BODY_MAX:
            raise ProtocolError(
                f"the master sent a transfer of {self._left} bytes at offset {self._offset}, which "
                f"is not possible: a transfer has 0 to {BODY_MAX} bytes; check that the address is "
                "that of an HA port"
            )


class ReportReader:
    """Reads the reports of a slave."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the reported offsets in ``data``, oldest first."""
        data = self._partial + data
        whole = len(data) - len(data) % REPORT.size
        self._partial = data[whole:]
        return [offset for (offset,) in REPORT.iter_unpack(data[:whole])]
