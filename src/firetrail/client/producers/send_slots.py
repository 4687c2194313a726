"""The limit of the sends that wait for one broker at the same time."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from weakref import WeakValueDictionary

IN_FLIGHT_MAX = 256
"""Maximum number of concurrent sends that wait for one broker. Further ones would only wait in the
connection while their time limits run."""


class SendSlots:
    """At most ``IN_FLIGHT_MAX`` sends per broker at a time; others wait in the order of arrival.

    An address is forgotten when its last send ends, because brokers come and go.
    """

    def __init__(self) -> None:
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, address: str) -> AbstractAsyncContextManager[None]:
        """Return the context in which a request to a broker may be sent."""
        slots = self._slots.get(address)
        if slots is None:
            slots = self._slots[address] = asyncio.Semaphore(IN_FLIGHT_MAX)
        return slots
