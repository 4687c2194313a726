"""Java's ``String.hashCode``, what RocketMQ makes of it, and Java's reading of UTF-8.

``s[0]*31^(n-1) + s[1]*31^(n-2) + … + s[n-1]`` over the UTF-16 code units of the string, in 32-bit
two's complement. A character beyond the basic plane is two units, so hashing code points would be
wrong for it.
"""

from __future__ import annotations

import re
from struct import unpack

INT32_MIN = -(2**31)

_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def java_hash(text: str) -> int:
    """``text.hashCode()``, a signed 32-bit number. Lone surrogates hash as Java hashes them."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(units) // 2}H", units):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def java_text(raw: bytes) -> str:
    """``new String(raw, UTF_8)``: bytes that are not UTF-8 become U+FFFD, as many as in Java.

    Java and Python replace alike, but for a surrogate encoded on its own: Java makes that one
    U+FFFD, Python one for each byte.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub("\ufffd".encode(), raw).decode("utf-8", "replace")


def index_key_hash(topic: str, key: str) -> int:
    """Hash under which the index files keep ``key`` of ``topic``: never negative.

    The absolute value of the hash of ``topic#key``; the one hash whose absolute value Java cannot
    represent counts as 0.
    """
    value = java_hash(f"{topic}#{key}")
    return 0 if value == INT32_MIN else abs(value)
