"""Columns packed as the items of a client batch, compared with the codec."""

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.format.batch import BatchItem, encode_batch
from firetrail.pipeline.kernels.pack import pack_items

ROWS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=20)), min_size=1, max_size=20)


def ends(values: list[bytes]) -> "array[int]":
    return array("i", accumulate(map(len, values), initial=0))


def data(values: list[bytes]) -> bytes:
    return b"".join(values) or b"\0"


@given(ROWS, st.data(), st.integers(min_value=90, max_value=400))
def test_items_equal_those_of_the_codec(
    rows: list[tuple[bytes, bytes]], draw: st.DataObject, room: int
) -> None:
    bodies, properties = (list(column) for column in zip(*rows, strict=True))
    picks = draw.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30))
    packed, first = b"", 0
    while first < len(picks):
        out = bytearray(room)
        end, used = pack_items(
            ends(bodies),
            data(bodies),
            ends(properties),
            data(properties),
            array("q", picks),
            first,
            out,
        )
        assert end > first
        packed += out[:used]
        first = end
    assert packed == encode_batch(BatchItem(0, bodies[row], properties[row]) for row in picks)


def test_a_row_that_does_not_fit() -> None:
    out = bytearray(25)
    one = (array("i", [0, 4]), b"body", array("i", [0, 0]), b"\0", array("q", [0]))
    assert pack_items(*one, 0, out) == (0, 0)
    assert pack_items(*one, 0, bytearray(26)) == (1, 26)


@pytest.mark.parametrize(
    ("body_ends", "property_ends", "pick", "error"),
    [
        ([0, 4], [0, 0], 1, "row 1 of 1"),
        ([0, 4], [0, 0], -1, "row -1 of 1"),
        ([0, 5], [0, 0], 0, "the body of row 0"),
        ([4, 0], [0, 0], 0, "the body of row 0"),
        ([-1, 2], [0, 0], 0, "the body of row 0"),
        ([0, 4], [0, 40_000], 0, "the properties of row 0"),
        ([0, 4], [2, 1], 0, "the properties of row 0"),
    ],
)
def test_rows_outside_their_buffers_are_refused(
    body_ends: list[int], property_ends: list[int], pick: int, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        pack_items(
            array("i", body_ends),
            b"body",
            array("i", property_ends),
            bytes(40_000),
            array("q", [pick]),
            0,
            bytearray(100_000),
        )


def test_an_empty_output_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        pack_items(array("i", [0, 0]), b"\0", array("i", [0, 0]), b"\0", array("q"), 0, bytearray())
