"""Java's ``String.hashCode``, RocketMQ's index hash, and Java's way to decode UTF-8.

The hash is ``s[0]*31^(n-1) + s[1]*31^(n-2) + … + s[n-1]`` over the UTF-16 code units, in 32-bit
two's complement. A character beyond the basic plane is two units, so hashing code points would be
wrong for it.
"""

import re
from struct import unpack

from firetrail.format.values.integers import INT32_MIN

_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def java_hash(text: str) -> int:
    """Return ``text.hashCode()``, a signed 32-bit number; lone surrogates count as in Java."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(units) // 2}H", units):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def java_text(raw: bytes) -> str:
    """Return ``new String(raw, UTF_8)``: invalid bytes become U+FFFD, as many as in Java.

    Java and Python replace alike, except for an encoded surrogate: Java replaces it with one
    U+FFFD, and Python with one per byte.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub("\ufffd".encode(), raw).decode("utf-8", "replace")


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash of ``key`` of ``topic`` in index files; it is never negative.

    It is the absolute value of the hash of ``topic#key``. The one hash whose absolute value Java
    cannot represent counts as 0.
    """
    value = java_hash(f"{topic}#{key}")
    return 0 if value == INT32_MIN else abs(value)
