"""RocketMQ's Bloom filter over the names of consumer groups.

The broker evaluates the SQL92 filter of every group when a message arrives, and stores the groups
that match as a Bloom filter: ``bits`` bits, of which each group sets ``hashes``. The name is
``group#topic``; its bits follow from Guava's 128-bit Murmur3 hash.
"""

import math
import struct
from collections.abc import Iterable
from functools import lru_cache

_MASK = 2**64 - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


class BloomFilter:
    """The size of the filter, and the bits of a name.

    Args:
        error_percent: How many of 100 tests for a name that is not in the filter may succeed, from
            1 to 99.
        names: The number of names that are expected, at least 1.
    """

    def __init__(self, error_percent: int, names: int) -> None:
        rate = error_percent / 100
        self.hashes = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(
            names * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        self.bits = 8 * math.ceil(bits / 8)

    def positions(self, name: str) -> tuple[int, ...]:
        """Return the bits of a name."""
        return _positions(name, self.hashes, self.bits)

    def bitmap(self, positions: Iterable[int]) -> bytes:
        """Return a filter with these bits."""
        content = bytearray(self.bits // 8)
        for position in positions:
            content[position >> 3] |= 1 << (position & 7)
        return bytes(content)


def has_bits(bitmap: bytes, positions: Iterable[int]) -> bool:
    """Return whether all of these bits are set."""
    return all(bitmap[position >> 3] >> (position & 7) & 1 for position in positions)


@lru_cache(maxsize=4096)
def _positions(name: str, hashes: int, bits: int) -> tuple[int, ...]:
    value = murmur3(name.encode())
    first, second = value & 0xFFFFFFFF, value >> 32
    found = []
    for number in range(1, hashes + 1):
        combined = (first + number * second) & 0xFFFFFFFF
        if combined >= 2**31:  # negative in Java, which flips all bits
            combined ^= 0xFFFFFFFF
        found.append(combined % bits)
    return tuple(found)


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of the 128-bit Murmur3 hash (x64, seed 0)."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 = ((_rotate(h1 ^ _mix_1(k1), 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 = ((_rotate(h2 ^ _mix_2(k2), 31) + h1) * 5 + 0x38495AB5) & _MASK
    if rest := data[whole:]:
        k1, k2 = struct.unpack("<QQ", rest.ljust(16, b"\0"))
        h1, h2 = h1 ^ _mix_1(k1), h2 ^ _mix_2(k2)
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_final(h1) + _final(h2)) & _MASK


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _mix_1(value: int) -> int:
    return _rotate(value * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_2(value: int) -> int:
    return _rotate(value * _C2 & _MASK, 33) * _C1 & _MASK


def _final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
