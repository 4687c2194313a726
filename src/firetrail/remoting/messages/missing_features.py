"""Features of RocketMQ that Firetrail lacks, by the requests that only they have."""

from collections.abc import Iterable, Mapping

from firetrail.remoting.wire.codes import PLAIN_CODES, USER_CODES

_CODES: Mapping[str, Iterable[int]] = {
    "queues, settings or pops in RocksDB": (354, 355, 5001, 200056),
    "static topics": (513,),
    "controllers": (*range(1001, 1007), *range(1008, 1014)),
    "flow control for cold data": (2001, 2002, 2004),
    "lite topics": range(200070, 200080),
}
_SWITCHES = {
    **dict.fromkeys(USER_CODES, "authenticationEnabled"),
    **dict.fromkeys(PLAIN_CODES, "aclEnable"),
}
"""The settings without which there are no users, or no accounts of ACL 1.0, by request code."""
FEATURES: Mapping[int, str] = {code: name for name, codes in _CODES.items() for code in codes}
"""The features by request code."""


def refusal_of(code: int) -> str:
    """Return the remark for a request that no handler answers; it begins as RocketMQ's does."""
    remark = f" request type {code} not supported"
    if code in _SWITCHES:
        return f"{remark}: {_SWITCHES[code]} is false"
    feature = FEATURES.get(code)
    return f"{remark}: Firetrail does not have {feature}" if feature else remark
