"""The interface of one kind of use of a broker: clients, and a check of their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.crash.files_check import Raw

if TYPE_CHECKING:
    from tests.torture.clients.load import Load


class Use:
    """Clients that continue whatever the broker does, and raise a Violation on wrong results."""

    topics: Collection[str] = ()
    """Topics with plain messages of the ledger: each is stored once, at its acknowledged place."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._ledger = load.ledger
        self._source = load.source

    async def begin(self, resources: AsyncExitStack) -> None:
        """Begin, with a broker that serves and has the topics."""
        raise NotImplementedError

    def missing(self) -> Sequence[object]:
        """Return what is promised and was not delivered yet, once nothing more is sent."""
        raise NotImplementedError

    def figures(self) -> dict[str, int]:
        """Return how often each thing has happened."""
        raise NotImplementedError

    def look(self, store: Path, records: Sequence[Raw]) -> None:
        """Check the files of a broker that has ended; ``records`` is its whole log."""


def config_of(store: Path, name: str) -> dict[str, Any]:
    """Return the content of a file in ``config/``, or {} if it does not exist.

    Keys that are bare numbers, as Java writes them, become strings.
    """
    path = store / "config" / name
    if not path.exists():
        return {}
    text = re.sub(r"([{,]\s*)([0-9]+)\s*:", r'\1"\2":', path.read_text())
    content: dict[str, Any] = json.loads(text)
    return content
