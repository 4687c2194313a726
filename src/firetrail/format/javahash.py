"""Java's ``String.hashCode`` and what RocketMQ makes of it.

``s[0]*31^(n-1) + s[1]*31^(n-2) + … + s[n-1]`` over the UTF-16 code units of the string, in 32-bit
two's complement. A character beyond the basic plane is two units, so hashing code points would be
wrong for it.
"""

from __future__ import annotations

from struct import unpack

INT32_MIN = -(2**31)


def java_hash(text: str) -> int:
    """``text.hashCode()``, a signed 32-bit number. Lone surrogates hash as Java hashes them."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(units) // 2}H", units):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def index_key_hash(topic: str, key: str) -> int:
    """Hash under which the index files keep ``key`` of ``topic``: never negative.

    The absolute value of the hash of ``topic#key``; the one hash whose absolute value Java cannot
    represent counts as 0.
    """
    value = java_hash(f"{topic}#{key}")
    return 0 if value == INT32_MIN else abs(value)
