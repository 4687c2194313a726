"""Single flipped bits on the wire (T11): a replica stops before the record that they are in."""

from pathlib import Path

import pytest
from tests.replication.logs import SMALL, MemoryLog, log_content

from firetrail import Message, Store
from firetrail.errors import FiretrailError
from firetrail.replication.ha.ha_frames import HEADER, encode_header
from firetrail.replication.ha.replica_session import ReplicaSession


def records(folder: Path, sealed: bool) -> tuple[bytes, list[int]]:
    """Return the log of a store with three small messages, and where they end."""
    with Store.open(folder, SMALL.replace(property_crc=sealed)) as store:
        ends = [store.put(Message("T", b"body %d" % n, tags="t")).end_offset for n in range(3)]
    return log_content(folder)[: ends[-1]], ends


def frames_of(log: bytes, ends: list[int]) -> bytes:
    """Return the log in one frame per record, as a replica gets it that asked for offset 1."""
    begins = [1, *ends[:-1]]
    frames = [
        encode_header(begin, end - begin) + log[begin:end]
        for begin, end in zip(begins, ends, strict=True)
    ]
    return b"".join([*frames, encode_header(ends[-1], 0)])


def receive(stream: bytes) -> tuple[MemoryLog, bool]:
    """Return the log of a replica that was sent a stream, and whether it refused something."""
    replica = MemoryLog()
    session = ReplicaSession(replica, lambda: replica.max_offset, 0, 0.0, 5.0)
    session.report(0.0)
    try:
        session.receive(memoryview(stream), 0.0)
    except FiretrailError:
        return replica, True
    return replica, session.position != replica.max_offset  # it waits for bytes that never come


def flipped(content: bytes, at: int, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


def test_every_flipped_bit_of_a_sealed_record_is_refused(tmp_path: Path) -> None:
    log, ends = records(tmp_path, sealed=True)
    stream = frames_of(log, ends)
    assert receive(stream)[0].content == log
    second = HEADER.size + ends[0] - 1 + HEADER.size
    for at in range(ends[1] - ends[0]):
        for bit in range(8):
            replica, refused = receive(flipped(stream, second + at, bit))
            assert refused, (at, bit)
            assert replica.content == log[: ends[0]]


def test_every_flipped_bit_of_a_frame_header_is_refused(tmp_path: Path) -> None:
    log, ends = records(tmp_path, sealed=True)
    stream = frames_of(log, ends)
    last = len(stream) - HEADER.size  # the heartbeat
    for begin in (0, HEADER.size + ends[0] - 1, last):
        for at in range(begin, begin + HEADER.size):
            for bit in range(8):
                replica, refused = receive(flipped(stream, at, bit))
                assert refused or (begin == last and at >= last + 8), (at, bit)
                assert log.startswith(bytes(replica.content))


@pytest.mark.parametrize("bit", range(8))
def test_a_plain_record_is_covered_as_far_as_its_format_reaches(tmp_path: Path, bit: int) -> None:
    """Without a checksum of the whole record, other fields can change without notice.

    Those that decide where a record is and ends, and the body, cannot.
    """
    log, ends = records(tmp_path, sealed=False)
    stream = frames_of(log, ends)
    second, size = HEADER.size + ends[0] - 1 + HEADER.size, ends[1] - ends[0]
    unnoticed = set()
    for at in range(size):
        replica, refused = receive(flipped(stream, second + at, bit))
        if not refused:
            unnoticed.add(at)
            assert len(replica.content) == len(log)
    # queue id, flag, queue offset, flags, times and hosts, retries, half message, text
    head = {*range(12, 28), *range(36, 84)}
    body = 84 + 4 + len("body 1")
    text = {body + 1, *range(size - len("TAGS.t."), size)}
    assert unnoticed <= head | text
