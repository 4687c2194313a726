"""Checkpoint and watermark: what is written in which order, and which slot counts."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine

from firetrail.errors import DiskFullError
from firetrail.format.files.checkpoint import CHECKPOINT_SIZE, Checkpoint, encode_checkpoint
from firetrail.format.names import CHECKPOINT, WATERMARK
from firetrail.store.root.watermark import (
    SLOT_SIZE,
    Watermark,
    WatermarkFile,
    decode_watermark,
    encode_watermark,
    read_checkpoint,
    read_watermark,
)

pytestmark = pytest.mark.stepped_threads

MARKS = {"physic_timestamp": 7, "logics_timestamp": 6, "index_timestamp": 5}


def mark(number: int, *, clean: bool = False) -> Watermark:
    return Watermark(clean, number, number - 1, number - 2, number - 3)


class Bench:
    def __init__(self, root: Path) -> None:
        self.machine = Machine()
        self.root = root

    def open(self) -> WatermarkFile:
        return WatermarkFile(self.machine.system, self.root)

    def read(self) -> Watermark | None:
        return read_watermark(self.machine.system, self.root)

    def checkpoint(self) -> Checkpoint:
        return read_checkpoint(self.machine.system, self.root)

    def damage(self, slot: int) -> None:
        content = bytearray((self.root / WATERMARK).read_bytes())
        content[slot * SLOT_SIZE + 20] ^= 1
        (self.root / WATERMARK).write_bytes(content)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert not bench.machine.files.open_files


class TestSlot:
    def test_a_slot_is_decoded_as_it_was_encoded(self) -> None:
        checkpoint = Checkpoint(1, 2, 3)
        slot = encode_watermark(mark(100, clean=True), checkpoint, 9)
        assert len(slot) == SLOT_SIZE
        assert decode_watermark(slot, checkpoint) == (9, mark(100, clean=True))

    def test_every_flipped_bit_is_found(self) -> None:
        checkpoint = Checkpoint(1, 2, 3)
        slot = encode_watermark(mark(100), checkpoint, 9)
        length = len(slot.rstrip(b"\0"))
        for bit in range(8 * length):
            damaged = bytearray(slot)
            damaged[bit // 8] ^= 1 << bit % 8
            assert decode_watermark(bytes(damaged), checkpoint) is None

    @pytest.mark.parametrize("length", [0, 1, 50, 79])
    def test_a_truncated_slot_is_not_valid(self, length: int) -> None:
        slot = encode_watermark(mark(100), Checkpoint(), 9)
        assert decode_watermark(slot[:length], Checkpoint()) is None

    @pytest.mark.parametrize("other", [Checkpoint(9, 2, 3), Checkpoint(1, 9, 3), Checkpoint(1, 2)])
    def test_a_slot_of_another_checkpoint_is_not_valid(self, other: Checkpoint) -> None:
        """The Java store has written since: what the watermark says may no longer hold."""
        slot = encode_watermark(mark(100), Checkpoint(1, 2, 3), 9)
        assert decode_watermark(slot, other) is None


class TestFile:
    def test_missing_files_give_no_watermark(self, bench: Bench) -> None:
        assert bench.read() is None
        assert bench.checkpoint() == Checkpoint()

    def test_write_and_read(self, bench: Bench) -> None:
        file = bench.open()
        file.write(mark(100), **MARKS)
        assert bench.read() == mark(100)
        assert bench.checkpoint() == Checkpoint(7, 6, 5)
        file.close()
        assert (bench.root / CHECKPOINT).stat().st_size == CHECKPOINT_SIZE

    def test_the_newest_watermark_is_read(self, bench: Bench) -> None:
        for number in range(100, 105):
            file = bench.open()
            file.write(mark(number), **MARKS)
            file.write(mark(number, clean=True), **MARKS)
            file.close()
            assert bench.read() == mark(number, clean=True)

    def test_or_the_one_before_if_it_is_torn(self, bench: Bench) -> None:
        file = bench.open()
        for number in (100, 200, 300):
            file.write(mark(number), **MARKS)
        file.close()
        bench.damage(1)  # sequence 3
        assert bench.read() == mark(200)
        bench.damage(0)
        assert bench.read() is None

    def test_the_same_is_not_written_again(self, bench: Bench) -> None:
        file = bench.open()
        file.write(mark(100), **MARKS)
        bench.machine.files.forget()
        file.write(mark(100), **MARKS)
        assert bench.machine.files.tally() == {}
        file.write(mark(101), **MARKS)
        assert bench.machine.files.count("sync", CHECKPOINT) == 0
        file.close()

    def test_fields_of_others_are_kept(self, bench: Bench) -> None:
        before = Checkpoint(1, 2, 3, master_flushed_offset=44, confirm_offset=55)
        (bench.root / CHECKPOINT).write_bytes(encode_checkpoint(before))
        file = bench.open()
        file.write(mark(100), **MARKS)
        file.close()
        after = bench.checkpoint()
        assert (after.master_flushed_offset, after.confirm_offset) == (44, 55)
        assert after.physic_timestamp == 7

    @pytest.mark.parametrize(
        ("operation", "name"),
        [("write", WATERMARK), ("sync", WATERMARK), ("write", CHECKPOINT), ("sync", CHECKPOINT)],
    )
    def test_a_crash_at_any_point_leaves_one_that_counts(
        self, bench: Bench, operation: str, name: str
    ) -> None:
        file = bench.open()
        file.write(mark(100), **MARKS)
        bench.machine.files.fail(operation, errno.EIO, name)
        with pytest.raises(OSError, match="Input/output error"):
            file.write(mark(200), physic_timestamp=70, logics_timestamp=60, index_timestamp=50)
        file.close()
        found = bench.read()
        assert found in (mark(100), mark(200))
        assert bench.checkpoint().physic_timestamp == (7 if found == mark(100) else 70)
        # And the next writer does not overwrite it with its first slot.
        bench.machine.files.heal()
        again = bench.open()
        again.write(mark(300), **MARKS)
        again.close()
        assert bench.read() == mark(300)

    def test_no_space_to_write_passes(self, bench: Bench) -> None:
        file = bench.open()
        file.write(mark(100), **MARKS)
        for name in (WATERMARK, CHECKPOINT):
            bench.machine.files.fail("write", errno.ENOSPC, name)
            for number in (200, 300, 400):
                with pytest.raises(DiskFullError, match="no space to write the watermark"):
                    file.write(mark(number), physic_timestamp=number)
                assert bench.read() == mark(100)
            bench.machine.files.heal()
        file.write(mark(500), physic_timestamp=500)
        assert bench.read() == mark(500)
        file.close()

    def test_the_slot_that_counts_survives_the_next_write(self, bench: Bench) -> None:
        file = bench.open()
        for number in (100, 200, 300):
            file.write(mark(number), **MARKS)
        file.close()
        again = bench.open()
        bench.machine.files.fail("sync", errno.EIO, WATERMARK)
        with pytest.raises(OSError, match="Input/output error"):
            again.write(mark(400), **MARKS)
        again.close()
        bench.damage((again._sequence + 1) % 2)
        assert bench.read() == mark(300)

    @pytest.mark.parametrize("operation", ["open", "set_size", "allocate", "sync_folder"])
    @pytest.mark.parametrize("skip", [0, 1])
    def test_a_failed_open_leaves_no_file_open(
        self, bench: Bench, operation: str, skip: int
    ) -> None:
        bench.machine.files.fail(operation, errno.ENOSPC, skip=skip)
        with pytest.raises(OSError, match="No space left"):
            bench.open()
        assert not bench.machine.files.open_files

    @pytest.mark.parametrize("content", [b"", b"x", b"x" * 100])
    def test_a_checkpoint_that_cannot_be_read(self, bench: Bench, content: bytes) -> None:
        (bench.root / CHECKPOINT).write_bytes(content)
        file = bench.open()
        file.write(mark(100), **MARKS)
        file.close()
        assert bench.read() == mark(100)
        assert (bench.root / CHECKPOINT).stat().st_size == CHECKPOINT_SIZE
