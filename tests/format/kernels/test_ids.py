"""Ids of neighbours in the log."""

from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from firetrail.format.kernels.ids import join_ids
from firetrail.format.values.hosts import parse_host
from firetrail.format.values.ids import encode_message_id

HOSTS = ("127.0.0.1:10911", "[2001:db8::1]:10911")


@given(
    st.lists(st.integers(4, 90), max_size=5),
    st.integers(0, 2**62),
    st.sampled_from(HOSTS),
    st.integers(0, 8),
)
def test_ids_equal_those_encoded_one_by_one(
    sizes: list[int], offset: int, address: str, cut: int
) -> None:
    host = parse_host(address)
    records = b"".join(pack(">i", size) + bytes(size - 4) for size in sizes)
    records = records[: max(len(records) - cut, 0)]
    start = encode_message_id(host, 0)[:-16].encode()
    expected, at = [], offset
    for size in sizes:
        if at - offset + size <= len(records):
            expected.append(encode_message_id(host, at))
        at += size
    assert join_ids(records, len(sizes), offset, start) == ",".join(expected)


def test_no_more_than_asked_for() -> None:
    records = (pack(">i", 5) + b"x") * 3
    assert join_ids(records, 2, 16, b"AB") == "AB0000000000000010,AB0000000000000015"


def test_a_size_that_is_none() -> None:
    assert join_ids(bytes(10), 2, 0, b"") == ""
