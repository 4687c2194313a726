"""The reasons for which a table rejects messages that can be decoded, or single rows of them."""

from collections.abc import Sequence

DELETE = "a delete; a table without --upsert keeps all rows"
COMPRESSED = "the body is compressed and cannot be decompressed"
OTHER_KEY = "the event names another primary key than that of the table"
_UNUSABLE_KEY = "a delete without a usable key: "
_NULL_KEY = "a null in the key: "


def null_key(key: Sequence[str]) -> str:
    """Return the reason for a row of which a column of the key is null."""
    return f"{_NULL_KEY}{', '.join(key)}"


def unusable_key(key: Sequence[str]) -> str:
    """Return the reason for a delete that neither the body nor the message gives a key."""
    if len(key) == 1:
        return f"{_UNUSABLE_KEY}the message's KEYS must begin with a value of {key[0]}"
    return f"{_UNUSABLE_KEY}the body must have values of {', '.join(key)}"


def is_of_row(reason: str) -> bool:
    """Whether a reason is that of a single row; others are those of whole messages."""
    return reason == DELETE or reason.startswith((_UNUSABLE_KEY, _NULL_KEY))
