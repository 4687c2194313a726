"""The frames of RocketMQ's auto-switch HA protocol (controller mode, 5.1.1 and later), without I/O.

A slave connects and sends a *handshake*. The master answers with the end of its log and its list of
epochs. The slave then sends *reports* as in the classic protocol, and the master *transfers*, whose
headers also have the epoch of the bytes and the offset up to which they are confirmed.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from firetrail.errors import ProtocolError
from firetrail.replication.ha.ha_frames import BODY_MAX
from firetrail.replication.log.epochs import EPOCHS_MAX, Epoch, check_epochs

HANDSHAKE = 1
TRANSFER = 2
"""The states of four bytes with which every frame begins."""

SLAVE_HANDSHAKE = Struct(">ihhq")
SLAVE_REPORT = Struct(">iq")
MASTER_HANDSHAKE = Struct(">iiqi")
EPOCH = Struct(">iq")
TRANSFER_HEADER = Struct(">iiqiqq")
_STATE = Struct(">i")

LEARNER_ID = 1 << 40
"""The broker id that a learner sends to the master.

A master counts the reports of an id that is a member of its in-sync set. Controllers number members
from 1 on, so this id is never one of them.
"""


class MasterHandshake(NamedTuple):
    """The first frame of a master.

    Attributes:
        end: The physical offset of the end of its log.
        epochs: The epochs of its log, oldest first.
    """

    end: int
    epochs: tuple[Epoch, ...]


class EpochPiece(NamedTuple):
    """Bytes of the master's log, at their physical offset. A heartbeat has no bytes.

    Attributes:
        offset: Their offset; -1 in a heartbeat of a master that does not know the position of the
            slave.
        content: The bytes.
        epoch: Their epoch, or the next one if they are the last bytes of theirs.
        confirmed: The offset up to which the master considers its log safe; -1 if unknown.
    """

    offset: int
    content: memoryview
    epoch: Epoch
    confirmed: int


def encode_learner_handshake() -> bytes:
    """Return the handshake of an async learner, which never becomes a member of the in-sync set."""
    return SLAVE_HANDSHAKE.pack(HANDSHAKE, 0, 1, LEARNER_ID)


def encode_report(offset: int) -> bytes:
    """Return the report of a slave whose log ends at ``offset``."""
    return SLAVE_REPORT.pack(TRANSFER, offset)


class MasterReader:
    """Splits the stream of a master into its handshake and pieces of its log.

    A piece may be part of a transfer, so that no transfer has to be kept in memory as a whole.
    """

    def __init__(self) -> None:
        self._partial = bytearray()  # of a header, or of a whole handshake
        self._missing = _STATE.size
        self._piece = EpochPiece(0, memoryview(b""), Epoch(0, 0), -1)
        self._left = 0  # bytes of the transfer that are still to come

    def feed(self, data: memoryview) -> Iterator[MasterHandshake | EpochPiece]:
        """Yield the frames and pieces in ``data``; pieces are slices of it.

        Raises:
            ProtocolError: The bytes are not frames of a master.
        """
        at = 0
        while at < len(data):
            if self._left:
                content = data[at : at + self._left]
                yield self._piece._replace(content=content)
                self._piece = self._piece._replace(offset=self._piece.offset + len(content))
                self._left -= len(content)
                at += len(content)
                continue
            taken = data[at : at + self._missing - len(self._partial)]
            self._partial += taken
            at += len(taken)
            if len(self._partial) == self._missing:
                frame = self._decode()
                if frame is not None:
                    yield frame

    def _decode(self) -> MasterHandshake | EpochPiece | None:
        """Return the collected frame; None if more bytes of it, or its content, are to come."""
        (state,) = _STATE.unpack_from(self._partial)
        if state == HANDSHAKE:
            return self._decode_handshake()
        if state == TRANSFER:
            return self._decode_transfer()
        raise ProtocolError(
            f"the master sent a frame of state {state}; check that the address is that of the HA "
            "port of a master in controller mode"
        )

    def _decode_handshake(self) -> MasterHandshake | None:
        if self._missing < MASTER_HANDSHAKE.size:
            self._missing = MASTER_HANDSHAKE.size
            return None
        _, size, end, _ = MASTER_HANDSHAKE.unpack_from(self._partial)
        if size % EPOCH.size or not 0 <= size <= EPOCHS_MAX * EPOCH.size:
            raise ProtocolError(f"the master sent a list of epochs of {size} bytes")
        if self._missing < MASTER_HANDSHAKE.size + size:
            self._missing = MASTER_HANDSHAKE.size + size
            return None
        entries = EPOCH.iter_unpack(self._partial[MASTER_HANDSHAKE.size :])
        epochs = tuple(Epoch(*entry) for entry in entries)
        self._end_header()
        if problem := check_epochs(epochs):
            raise ProtocolError(f"the master sent a wrong list of epochs: {problem}")
        return MasterHandshake(end, epochs)

    def _decode_transfer(self) -> EpochPiece | None:
        if self._missing < TRANSFER_HEADER.size:
            self._missing = TRANSFER_HEADER.size
            return None
        _, size, offset, number, start, confirmed = TRANSFER_HEADER.unpack(self._partial)
        if not 0 <= size <= BODY_MAX or offset < (0 if size else -1):
            raise ProtocolError(
                f"the master sent a transfer of {size} bytes at offset {offset}, which is not "
                f"possible: a transfer has 0 to {BODY_MAX} bytes"
            )
        self._end_header()
        self._left = size
        self._piece = EpochPiece(offset, memoryview(b""), Epoch(number, start), confirmed)
        return None if size else self._piece

    def _end_header(self) -> None:
        self._partial.clear()
        self._missing = _STATE.size
