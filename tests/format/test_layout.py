"""The fields of the declared structures have RocketMQ's offsets."""

import pytest

from firetrail.format import layout
from firetrail.format.layout import Layout


def test_fields_stand_one_behind_the_other() -> None:
    made = Layout(one="b", two="q", three="H")
    assert dict(made.offsets) == {"one": 0, "two": 1, "three": 9}
    assert made.size == 11
    assert made.struct.pack(-1, 2, 3) == bytes.fromhex("ff 0000000000000002 0003")


def test_nobody_moves_a_field() -> None:
    with pytest.raises(TypeError):
        layout.UNIT.offsets["size"] = 0  # type: ignore[index]
    with pytest.raises(AttributeError):
        layout.UNIT.another = 1  # type: ignore[attr-defined]


def test_the_head_of_a_record_has_the_offsets_of_java() -> None:
    assert dict(layout.RECORD_HEAD.offsets) == {
        "total_size": 0,
        "magic": 4,
        "body_crc": 8,
        "queue_id": 12,
        "flag": 16,
        "queue_offset": 20,
        "physical_offset": 28,
        "sys_flag": 36,
        "born_time": 40,
    }
    assert layout.RECORD_HEAD.size == 48
    assert dict(layout.RECORD_MIDDLE.offsets) == {
        "reconsume_times": 0,
        "prepared_offset": 4,
        "body_length": 12,
    }
    assert layout.RECORD_SIZE_MIN == 91


@pytest.mark.parametrize(
    ("structure", "offsets", "size"),
    [
        (layout.BLANK, [0, 4], 8),
        (layout.BATCH_ITEM, [0, 4, 8, 12, 16], 20),
        (layout.UNIT, [0, 8, 12], 20),
        (layout.INDEX_HEADER, [0, 8, 16, 24, 32, 36], 40),
        (layout.INDEX_SLOT, [0], 4),
        (layout.INDEX_ENTRY, [0, 4, 12, 16], 20),
    ],
)
def test_structures_have_the_offsets_and_sizes_of_java(
    structure: Layout, offsets: list[int], size: int
) -> None:
    assert list(structure.offsets.values()) == offsets
    assert structure.size == size


def test_constants_are_those_of_java() -> None:
    assert layout.MAGIC_V1 == -626843481 & 0xFFFFFFFF
    assert layout.MAGIC_V2 == -626843477 & 0xFFFFFFFF
    assert layout.MAGIC_BLANK == -875286124 & 0xFFFFFFFF
    assert layout.PROPERTY_CRC_SIZE == 20
    states = {
        layout.TRANSACTION_NONE,
        layout.TRANSACTION_PREPARED,
        layout.TRANSACTION_COMMIT,
        layout.TRANSACTION_ROLLBACK,
    }
    assert states == {0, 4, 8, 12}
    assert all(state & layout.TRANSACTION_MASK == state for state in states)
    bits = (layout.COMPRESSED, layout.TRANSACTION_MASK, layout.BORN_HOST_V6, layout.STORE_HOST_V6)
    assert sum(bits) == 0x3D  # none shares a bit with another


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (layout.TRANSACTION_NONE, True),
        (layout.TRANSACTION_PREPARED, False),
        (layout.TRANSACTION_COMMIT, True),
        (layout.TRANSACTION_ROLLBACK, False),
    ],
)
def test_only_open_and_rolled_back_transactions_take_no_queue_offset(
    state: int, expected: bool
) -> None:
    others = ~layout.TRANSACTION_MASK & 0x3F
    assert layout.takes_queue_offset(state) is expected
    assert layout.takes_queue_offset(state | others) is expected
