"""Remarks about brokers with the same name and id, in their answers and, less often, in the log."""

import logging
from collections.abc import Callable

from firetrail.namesrv.routes import Registration
from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.messages.bodies import MASTER_ID

PAUSE_S = 600.0
"""Pause between two log lines about the same two brokers, which register every 30 seconds and with
every new topic."""
GRACE_S = 60.0
"""The time for which two slaves may have the same id. In a planned hand-over the former master
registers with the id of its successor, which has it until it registers as the master."""
PAIRS_MAX = 1_000
"""Maximum number of remembered pairs. Then all are forgotten."""

_log = logging.getLogger(__name__)


class DuplicateBrokers:
    """Reports that two brokers have the same name and id. ``now`` is a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._log = LimitedLog(_log, now, burst=1, per_s=1 / PAUSE_S)
        # Since when each pair is known.
        self._pairs: dict[tuple[str, int, frozenset[str]], float] = {}

    def remark(self, who: Registration, rival: str | None) -> str | None:
        """Return the remark for a broker that has registered, None if there is no ``rival``."""
        if rival is None:
            self._forget(who)
            return None
        pair = who.name, who.broker_id, frozenset({who.address, rival})
        now = self._now()
        if len(self._pairs) >= PAIRS_MAX:
            self._pairs.clear()
        since = self._pairs.setdefault(pair, now)
        if who.broker_id != MASTER_ID and now - since < GRACE_S:
            return None
        remark = (
            f"broker {who.name} with id {who.broker_id} is at {who.address} and at {rival}: "
            f"clients find only the one that registered last; {_remedy(who.broker_id)}"
        )
        kind = f"{who.name} {who.broker_id} {' '.join(sorted(pair[2]))}"
        self._log.log(logging.WARNING, kind, remark)
        return remark

    def _forget(self, who: Registration) -> None:
        """Forget the pairs of a broker that has no rival now."""
        over = [pair for pair in self._pairs if pair[0] == who.name and who.address in pair[2]]
        for pair in over:
            del self._pairs[pair]


def _remedy(broker_id: int) -> str:
    if broker_id != MASTER_ID:
        return "give each its own brokerId"
    return (
        "only one can be the master: start the other one with brokerRole=SLAVE and a brokerId of "
        "its own, or with another brokerName if it is not a copy of the first"
    )
