"""The handle with which a producer recalls a message that waits for its delivery time.

Version 1 is the URL-safe Base64 text, with padding, of ``v1 <topic> <broker> <ms> <unique key>``.
"""

import base64
import binascii
from typing import NamedTuple

from firetrail.errors import FormatError
from firetrail.format.names import shortened
from firetrail.format.values.integers import number_in

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """The message to recall. ``time_ms`` is a time within its slot of the timer."""

    topic: str
    broker: str
    time_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the text that producers get."""
        text = f"{_VERSION} {self.topic} {self.broker} {self.time_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Decode a handle; raise FormatError if the text is not a handle."""
    if not text:
        raise FormatError("recall handle", 0, "it is empty; the answer to the send has it")
    try:
        words = base64.b64decode(text.encode(), b"-_", validate=True).decode().split(" ")
    except (binascii.Error, UnicodeError):
        raise _wrong(text, "is not Base64 text") from None
    if len(words) != 5 or words[0] != _VERSION or not all(words):
        raise _wrong(text, "is not a handle of version 1")
    _, topic, broker, time, unique_key = words
    time_ms = number_in(time, 0)
    if time_ms is None:
        raise _wrong(time, "is not a time")
    return RecallHandle(topic, broker, time_ms, unique_key)


def _wrong(text: str, what: str) -> FormatError:
    return FormatError("recall handle", 0, f"{shortened(text)} {what}")
