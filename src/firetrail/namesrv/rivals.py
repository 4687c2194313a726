"""Brokers with the same name and id: each gets a remark, and the log has one from time to time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from firetrail.namesrv.routes import Registration

PAUSE_S = 600.0
"""Pause between two log lines about the same two brokers, which register every 30 seconds and with
every new topic."""
PAIRS_MAX = 1_000
"""Maximum number of remembered pairs. Then all are forgotten, and may be logged again."""

_log = logging.getLogger(__name__)


class Rivals:
    """Reports that two brokers have the same name and id. ``now`` is a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logged: dict[tuple[str, int, frozenset[str]], float] = {}

    def remark(self, who: Registration, rival: str | None) -> str | None:
        """Return the remark for a broker that has registered, None if there is no ``rival``."""
        if rival is None:
            return None
        remark = (
            f"broker {who.name} with id {who.broker_id} is at {who.address} and at {rival}: "
            "clients find only the one that registered last; give each its own brokerName"
        )
        pair = who.name, who.broker_id, frozenset({who.address, rival})
        now = self._now()
        if now - self._logged.get(pair, -PAUSE_S) >= PAUSE_S:
            if len(self._logged) >= PAIRS_MAX:
                self._logged.clear()
            self._logged[pair] = now
            _log.warning("%s", remark)
        return remark
