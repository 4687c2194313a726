"""A message on its way into the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firetrail.errors import IllegalMessageError
from firetrail.format.hosts import Host
from firetrail.format.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    NAME_END,
    TAGS,
    VALUE_END,
    encode_properties,
)


@dataclass(slots=True)
class Message:
    """What to store: a topic, a body, and what the message can be found or filtered by.

    ``keys`` are indexed, one by one; a key holds no space. ``raw_properties`` are properties that
    were encoded already (by a client); they replace all that is said by ``tags``, ``keys``,
    ``delay_level`` and ``properties``. ``born_time`` (ms) is the time of the put if it is None.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] | None = None
    queue_id: int = 0
    delay_level: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_time: int | None = None
    born_host: Host | None = None
    reconsume_times: int = 0
    prepared_offset: int = 0
    raw_properties: bytes | None = None
    wait_for_flush: bool = True

    def encode_properties(self) -> bytes:
        """The properties as they are stored, before the store adds its own.

        Raises IllegalMessageError for what the format has no way to hold.
        """
        if self.raw_properties is not None:
            return self.raw_properties
        text = ""
        items = 0
        if self.keys:
            text = f"{KEYS}\x01{self._joined_keys()}\x02"
            items = 1
        if self.tags:
            text += f"{TAGS}\x01{self.tags}\x02"
            items += 1
        if self.delay_level:
            text += f"{DELAY}\x01{self.delay_level}\x02"
            items += 1
        encoded = text.encode()
        if encoded.count(1) != items or encoded.count(2) != items:
            field = TAGS if self.tags and ({NAME_END, VALUE_END} & set(self.tags)) else KEYS
            raise IllegalMessageError(
                f"property {field}", "holds one of the separators \\x01 and \\x02"
            )
        return encoded + encode_properties(self.properties) if self.properties else encoded

    def _joined_keys(self) -> str:
        if isinstance(self.keys, str):
            raise IllegalMessageError("keys", f'a list is needed, such as ["{self.keys}"]')
        joined = KEY_SEPARATOR.join(self.keys)
        if joined.count(KEY_SEPARATOR) != len(self.keys) - 1:
            raise IllegalMessageError("keys", f"a key holds no space: {list(self.keys)!r}")
        return joined
