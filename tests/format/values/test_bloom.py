"""RocketMQ's Bloom filter; the expected values were computed by its own class (5.3.3)."""

import pytest

from firetrail.format.values.bloom import BloomFilter, has_bits

JAVA = {
    (20, 32): (3, 112, {"G#T": [24, 26, 83], "%RETRY%G#T": [25, 48, 40], "a#b": [101, 103, 59]}),
    (20, 64): (
        3,
        216,
        {
            "please_rename_unique_group_name#TopicTest": [201, 147, 96],
            "中文组#主题": [72, 139, 206],
            "0123456789abcdef#": [56, 36, 54],
            "0123456789abcdefg#x😀": [157, 75, 124],
            "CID_long_name_with_more_than_32_bytes_in_it#topic-7": [153, 6, 75],
        },
    ),
    (1, 1): (7, 16, {"G#T": [8, 10, 3, 14, 15, 2, 4], "a#b": [5, 7, 11, 1, 1, 11, 7]}),
    (50, 10): (1, 16, {"G#T": [8], "中文组#主题": [0]}),
    (99, 5): (1, 8, {"G#T": [0], "0123456789abcdefg#x😀": [5]}),
    (10, 1000): (4, 4800, {"G#T": [616, 3978, 2259, 398], "a#b": [661, 2151, 3931, 3681]}),
}


@pytest.mark.parametrize("settings", JAVA)
def test_sizes_and_bits_are_those_of_java(settings: tuple[int, int]) -> None:
    hashes, bits, names = JAVA[settings]
    bloom = BloomFilter(*settings)
    assert (bloom.hashes, bloom.bits) == (hashes, bits)
    for name, positions in names.items():
        assert list(bloom.positions(name)) == positions


def test_a_bitmap_is_that_of_java() -> None:
    bloom = BloomFilter(20, 32)
    bitmap = bloom.bitmap(bloom.positions("G#T"))
    assert bitmap.hex() == "0000000500000000000008000000"
    assert has_bits(bitmap, bloom.positions("G#T"))
    assert not has_bits(bitmap, bloom.positions("a#b"))
