"""Brokers with the same name and id: each of them is told so, and the log says it now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable

from firetrail.namesrv.routes import Registration

PAUSE_S = 600.0
"""Between two lines in the log about the same two brokers: they register every 30 seconds, and with
every new topic."""
PAIRS_MAX = 1_000
"""Pairs of brokers that are remembered; after that, all are forgotten, and may be logged again."""

_log = logging.getLogger(__name__)


class Rivals:
    """Says that two brokers have the same name and id. ``now`` is a clock that never jumps."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logged: dict[tuple[str, int, frozenset[str]], float] = {}

    def remark(self, who: Registration, rival: str | None) -> str | None:
        """What a broker is told that has registered, None if there is no ``rival``."""
        if rival is None:
            return None
        remark = (
            f"broker {who.name} with id {who.broker_id} is at {who.address} and at {rival}: "
            "clients find only the one that came last; give each a brokerName of its own"
        )
        pair = who.name, who.broker_id, frozenset({who.address, rival})
        now = self._now()
        if now - self._logged.get(pair, -PAUSE_S) >= PAUSE_S:
            if len(self._logged) >= PAIRS_MAX:
                self._logged.clear()
            self._logged[pair] = now
            _log.warning("%s", remark)
        return remark
