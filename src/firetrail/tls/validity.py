"""The period in which a certificate is valid. Python's ``ssl`` reports it for a peer's only.

A certificate (X.509) in DER begins with these fields::

    SEQUENCE certificate
        SEQUENCE the signed part
            [0] version, absent in the oldest ones
            INTEGER serial number
            SEQUENCE algorithm of the signature
            SEQUENCE issuer
            SEQUENCE validity
                time not before, time not after
"""

import ssl
from datetime import UTC, datetime
from typing import NamedTuple

RENEWED_DAYS = 30
"""The remaining validity below which a certificate should be replaced."""

_SEQUENCE, _VERSION = 0x30, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
"""The formats of the two types of times."""
_FIELDS_BEFORE = 3
"""The fields between the version and the validity."""
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_CENTURY = 100


class Validity(NamedTuple):
    """The time at which a certificate begins to be valid, and that at which it expires."""

    begin: datetime
    end: datetime


def validity_of(pem: bytes) -> Validity | None:
    """Return the validity of the first certificate of a file; None if it cannot be read.

    Args:
        pem: The content of a PEM file.
    """
    text = pem.decode("ascii", "replace")
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    if begin < 0 or end < 0:
        return None
    try:
        return _validity(ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)]))
    except (ValueError, IndexError):
        return None


def _validity(der: bytes) -> Validity:
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, after = _element(der, at)
    if tag == _VERSION:
        at = after
    for _ in range(_FIELDS_BEFORE):
        _, _, at = _element(der, at)
    tag, at, _ = _element(der, at)
    if tag != _SEQUENCE:
        raise ValueError("the validity is missing")
    _, _, middle = _element(der, at)
    return Validity(_time(der, at), _time(der, middle))


def _time(der: bytes, at: int) -> datetime:
    tag, at, end = _element(der, at)
    moment = datetime.strptime(der[at:end].decode("ascii"), _FORMATS.get(tag, ""))
    if tag == _UTC_TIME and moment.year >= 2050:  # two digits of a year mean 1950 to 2049
        moment = moment.replace(year=moment.year - _CENTURY)
    return moment.replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the element at a position, and where its content begins and ends."""
    tag, size, start = der[at], der[at + 1], at + 2
    if size & 0x80:
        digits = size & 0x7F
        size = int.from_bytes(der[start : start + digits])
        start += digits
    return tag, start, start + size
