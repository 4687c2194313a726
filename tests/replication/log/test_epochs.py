"""The epochs of a log, and the file that keeps them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.crash.world.disk import (
    PAGE,
    SECTOR,
    Disk,
    SimulatedFiles,
    Snapshot,
    every_image,
    write_image,
)
from tests.crash.world.simulation import scratch
from tests.crash.world.threads import World

from firetrail.errors import FormatError, StoreError
from firetrail.format.names import EPOCHS
from firetrail.replication.log.epochs import (
    EPOCHS_MAX,
    Epoch,
    EpochFile,
    check_epochs,
    common_point,
    decode_epochs,
    encode_epochs,
)
from firetrail.system import SYSTEM

JAVA = b"1\n1725254278\n1-0\n"
"""A file that RocketMQ 5.3.3 wrote."""
THREE = (Epoch(1, 0), Epoch(2, 4096), Epoch(7, 10_000))
BACKUP = f"{EPOCHS}.bak"


def stored(folder: Path, *epochs: Epoch) -> EpochFile:
    file = EpochFile(SYSTEM, folder)
    file.save(epochs)
    return file


# -- the content ---------------------------------------------------------------------------------


def test_a_file_of_java_round_trips() -> None:
    assert decode_epochs(JAVA) == (Epoch(1, 0),)
    assert encode_epochs([Epoch(1, 0)]) == JAVA


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8, unique=True),
    st.lists(st.integers(0, 2**63 - 1), min_size=8, max_size=8, unique=True),
)
def test_a_list_is_decoded_as_it_was_encoded(numbers: list[int], starts: list[int]) -> None:
    epochs = tuple(map(Epoch, sorted(numbers), sorted(starts)))
    assert decode_epochs(encode_epochs(epochs)) == epochs


def test_every_flipped_bit_is_noticed() -> None:
    for bit in range(8 * len(encode_epochs(THREE))):
        content = bytearray(encode_epochs(THREE))
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            decode_epochs(bytes(content))


def test_every_cut_is_noticed() -> None:
    content = encode_epochs(THREE)
    for size in range(len(content)):
        with pytest.raises(FormatError):
            decode_epochs(content[:size])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "epoch file at offset 0: has no epochs"),
        (b"0\n0\n", "epoch file at offset 0: has no epochs"),
        (b"x\n0\n1-0\n", "epoch file at offset 0: b'x' is not a number"),
        (b"2\n0\n1-0\n", "epoch file at offset 0: has 1 epochs instead of 2"),
        (b"1\n5\n1-0\n", "epoch file at offset 4: the checksum does not match the epochs"),
        (b"2\n0\n1-0\n2-?\n", "epoch file at offset 8: b'?' is not a number"),
        (b"1\n0\n10\n", "epoch file at offset 4: b'' is not a number"),
        (
            b"2\n0\n2-0\n2-9\n",
            "epoch file at offset 0: epoch 2 from offset 9 cannot follow epoch 2 from offset 0: "
            "both must grow",
        ),
        (
            b"1\n0\n4294967296-0\n",
            "epoch file at offset 0: epoch 4294967296 from offset 0 is out of range",
        ),
    ],
)
def test_damaged_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_epochs(content)
    assert str(caught.value) == message


def test_a_checksum_of_zero_is_not_checked() -> None:
    assert decode_epochs(b"1\n0\n3-7\n") == (Epoch(3, 7),)


def test_lines_of_windows_are_read() -> None:
    assert decode_epochs(b"1\r\n0\r\n3-7\r\n") == (Epoch(3, 7),)


def test_a_list_has_a_limit() -> None:
    epochs = [Epoch(number, number) for number in range(EPOCHS_MAX + 1)]
    assert check_epochs(epochs) == "65537 epochs are more than 65536"
    assert check_epochs(epochs[1:]) is None


# -- the file ------------------------------------------------------------------------------------


def test_a_new_store_has_no_epochs(tmp_path: Path) -> None:
    file = EpochFile(SYSTEM, tmp_path)
    assert file.epochs == ()
    assert file.last is None
    assert not list(tmp_path.iterdir())


def test_epochs_are_kept(tmp_path: Path) -> None:
    file = EpochFile(SYSTEM, tmp_path)
    for epoch in THREE:
        file.append(epoch)
    assert EpochFile(SYSTEM, tmp_path).epochs == file.epochs == THREE
    assert file.last == THREE[-1]
    assert (tmp_path / EPOCHS).read_bytes() == encode_epochs(THREE)


def test_an_epoch_without_records_is_replaced_by_the_next(tmp_path: Path) -> None:
    file = stored(tmp_path, *THREE)
    file.append(Epoch(8, 10_000))
    assert file.epochs == (*THREE[:2], Epoch(8, 10_000))
    file.append(Epoch(9, 4_000))  # the log ends before the starts of 2 and 8, which a crash left
    assert EpochFile(SYSTEM, tmp_path).epochs == (Epoch(1, 0), Epoch(9, 4_000))


@pytest.mark.parametrize("number", [6, 7])
def test_an_old_epoch_cannot_begin_again(tmp_path: Path, number: int) -> None:
    file = stored(tmp_path, *THREE)
    with pytest.raises(StoreError) as caught:
        file.append(Epoch(number, 20_000))
    assert str(caught.value) == (
        f"{tmp_path / EPOCHS}: epoch {number} cannot begin, because epoch 7 has begun before; let "
        "a new election give the master a larger number"
    )
    assert EpochFile(SYSTEM, tmp_path).epochs == file.epochs == THREE


def test_a_number_that_java_cannot_read_is_refused(tmp_path: Path) -> None:
    file = EpochFile(SYSTEM, tmp_path)
    with pytest.raises(StoreError, match="epoch 2147483648 from offset 0 is out of range"):
        file.append(Epoch(1 << 31, 0))


def test_a_full_list_forgets_its_oldest_epoch(tmp_path: Path) -> None:
    file = stored(tmp_path, *(Epoch(number, number) for number in range(EPOCHS_MAX)))
    file.append(Epoch(EPOCHS_MAX, EPOCHS_MAX))
    assert file.epochs[0] == Epoch(1, 1)
    assert len(file.epochs) == EPOCHS_MAX


@pytest.mark.parametrize(("end", "kept"), [(10_001, 3), (10_000, 2), (4096, 1), (1, 1), (0, 0)])
def test_epochs_after_the_end_of_the_log_are_forgotten(tmp_path: Path, end: int, kept: int) -> None:
    file = stored(tmp_path, *THREE)
    file.truncate(end)
    assert EpochFile(SYSTEM, tmp_path).epochs == file.epochs == THREE[:kept]


def test_an_empty_list_leaves_no_file(tmp_path: Path) -> None:
    stored(tmp_path, *THREE).truncate(0)
    assert not list(tmp_path.iterdir())


def test_the_backup_is_as_new_as_the_file(tmp_path: Path) -> None:
    stored(tmp_path, *THREE)
    assert (tmp_path / BACKUP).read_bytes() == (tmp_path / EPOCHS).read_bytes()


@pytest.mark.parametrize("content", [None, b"", b"3\n1\n1-0\n"])
def test_the_backup_is_read_if_the_file_is_damaged(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / BACKUP).write_bytes(JAVA)
    if content is not None:
        (tmp_path / EPOCHS).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        file = EpochFile(SYSTEM, tmp_path)
    assert file.epochs == (Epoch(1, 0),)
    assert "epochFileCheckpoint.bak is used instead, which may lack the last epoch" in caplog.text


def test_a_backup_proves_nothing_until_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / BACKUP).write_bytes(JAVA)
    file = EpochFile(SYSTEM, tmp_path)
    assert file.common_point(100, [Epoch(1, 0)], 200) is None
    file.save(file.epochs)
    assert file.common_point(100, [Epoch(1, 0)], 200) == 100
    assert EpochFile(SYSTEM, tmp_path).is_complete


def test_a_change_does_not_complete_a_backup(tmp_path: Path) -> None:
    (tmp_path / BACKUP).write_bytes(encode_epochs(THREE))
    file = EpochFile(SYSTEM, tmp_path)
    file.truncate(5000)
    file.append(Epoch(9, 6000))
    assert file.epochs == (*THREE[:2], Epoch(9, 6000))
    assert not file.is_complete


def test_two_damaged_files_are_an_error(tmp_path: Path) -> None:
    for name in (EPOCHS, BACKUP):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(StoreError) as caught:
        EpochFile(SYSTEM, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / EPOCHS}: epoch file at offset 0: has no epochs; {tmp_path / BACKUP}: epoch "
        "file at offset 0: has no epochs; restore a good copy, or remove the file and its backup: "
        "the log is then compared with the master's record by record"
    )


# -- power loss ----------------------------------------------------------------------------------

FIRST = (Epoch(1, 0),)
LIFE: list[tuple[Callable[[EpochFile], None], tuple[Epoch, ...]]] = [
    (lambda file: file.append(Epoch(2, 4096)), (*FIRST, Epoch(2, 4096))),
    (lambda file: file.append(Epoch(3, 4096)), (*FIRST, Epoch(3, 4096))),
    (lambda file: file.truncate(4096), FIRST),
    (lambda file: file.append(Epoch(9, 5000)), (*FIRST, Epoch(9, 5000))),
    (lambda file: file.truncate(0), ()),
    (lambda file: file.append(Epoch(10, 0)), (Epoch(10, 0),)),
]


@pytest.mark.parametrize("damaged", ["", EPOCHS, BACKUP])
def test_power_loss_leaves_the_old_or_the_new_list(damaged: str) -> None:
    """Every image at every operation of a life of the file, also if it began with damage."""
    with scratch() as below:
        root = below / "live"
        root.mkdir()
        stored(root, *FIRST)
        if damaged:
            (root / damaged).write_bytes(b"")
        disk = Disk(root)
        files = SimulatedFiles(disk, World(1))
        snapshots: list[tuple[Snapshot, list[tuple[Epoch, ...]]]] = []
        allowed: list[tuple[Epoch, ...]] = [FIRST]
        files.hooks.append(
            lambda kind, name: snapshots.append((disk.snapshot(f"{kind} {name}"), allowed[-2:]))
        )
        file = EpochFile(files.system(), root)
        for change, result in LIFE:
            allowed.append(result)
            change(file)
            assert file.epochs == result
        assert len(snapshots) > 40
        for snapshot, lists in snapshots:
            for block in (SECTOR, PAGE):
                for how, image in every_image(snapshot, block):
                    write_image(image, below / "image")
                    found = EpochFile(SYSTEM, below / "image").epochs
                    assert found in lists, f"before {snapshot.label}, {how}"
                    shutil.rmtree(below / "image")


# -- the common point ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "point"),
    [
        ([(1, 0)], 100, [(1, 0)], 300, 100),
        ([(1, 0)], 300, [(1, 0)], 100, 100),
        ([(1, 0), (2, 100)], 250, [(1, 0), (2, 100), (3, 200)], 500, 200),
        ([(1, 0), (2, 100)], 250, [(1, 0), (3, 80)], 500, 80),
        ([(1, 0), (2, 100)], 250, [(2, 100)], 500, 250),
        ([(1, 0), (2, 100)], 250, [(1, 0), (2, 90)], 500, 90),
        ([(1, 0), (2, 100)], 60, [(1, 0), (2, 100)], 500, 60),
        ([(1, 0)], 100, [(2, 0)], 500, None),
        ([], 100, [(1, 0)], 500, None),
        ([(1, 0)], 100, [], 500, None),
        ([], 0, [], 0, None),
    ],
)
def test_the_common_point(
    own: list[tuple[int, int]],
    own_end: int,
    other: list[tuple[int, int]],
    other_end: int,
    point: int | None,
) -> None:
    owns, others = [Epoch(*each) for each in own], [Epoch(*each) for each in other]
    assert common_point(owns, own_end, others, other_end) == point
    assert common_point(others, other_end, owns, own_end) == point


@dataclass
class Node:
    """A broker: its log, each byte of which is marked with its writer, and its epochs."""

    log: list[tuple[int, int]] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)

    def lead(self, number: int, writes: int) -> None:
        """Become master, and write without any replica."""
        kept = [each for each in self.epochs if each.start_offset < len(self.log)]
        self.epochs = [*kept, Epoch(number, len(self.log))]
        self.log += [(number, at) for at in range(writes)]

    def follow(self, master: Node, size: int) -> None:
        """Rewind to the common point, and copy at most ``size`` bytes."""
        point = self.point(master)
        self.log = master.log[: (point or 0) + size]
        self.epochs = [each for each in master.epochs if each.start_offset < len(self.log)]

    def point(self, other: Node) -> int | None:
        return common_point(self.epochs, len(self.log), other.epochs, len(other.log))


steps = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=20
)


@given(steps)
@example([(0, 0, 2), (1, 0, 5), (0, 0, 3), (1, 1, 3), (2, 0, 5), (2, 1, 5)])
def test_the_common_point_is_the_end_of_the_common_prefix(life: list[tuple[int, int, int]]) -> None:
    nodes = [Node(), Node(), Node()]
    for number, (who, master, size) in enumerate(life, 1):
        if who == master:
            nodes[who].lead(number, size)
        else:
            nodes[who].follow(nodes[master], size)
        for one in nodes:
            for other in nodes:
                equal = 0
                while one.log[equal : equal + 1] == other.log[equal : equal + 1] != []:
                    equal += 1
                assert (one.point(other) or 0) == equal
