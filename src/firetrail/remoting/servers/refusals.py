"""Log lines for rejected requests: the first of a kind at once, then a count per minute."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from firetrail.pace.limited_log import LENGTH_MAX
from firetrail.remoting.messages.requests import STORING
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.text import printable

LOG_INTERVAL_S = 60.0
"""Interval between two lines about the same kind."""
KINDS_MAX = 1_000
"""Kinds that are counted separately; a limit is needed because peers can invent codes."""

_ORDINARY = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.POLLING_TIMEOUT,
    }
)
"""Codes that are not rejections."""
_NAMES = {int(code): code.name for code in RequestCode}

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CompoundRequest(RemotingCommand):
    """A request of this process with several parts, each of which may be refused by itself.

    Attributes:
        refusals: The answers to the parts that were refused, by the number of the part.
    """

    refusals: dict[int, RemotingCommand] = field(default_factory=dict)


@dataclass(slots=True)
class _RefusalKind:
    logged_at: float
    unlogged: int = 0


class Refusals:
    """Counts rejections by the codes of request and response. ``now`` is a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kinds: dict[tuple[int, int], _RefusalKind] = {}

    def note(self, peer: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Count a request that was answered with a code other than success."""
        if response.code in _ORDINARY:
            return
        key = (request.code, response.code)
        kind = self._kinds.get(key)
        if kind is not None:
            kind.unlogged += 1
            return
        if len(self._kinds) >= KINDS_MAX:
            return
        self._kinds[key] = _RefusalKind(self._now())
        _log.log(
            _level(*key),
            "request %s of %s is answered with code %d: %s",
            _name(request.code),
            peer,
            response.code,
            printable(response.remark or "no reason given", LENGTH_MAX),
        )

    def flush(self) -> None:
        """Log the count of each kind since its last line; called about once per second."""
        now = self._now()
        due = [item for item in self._kinds.items() if now - item[1].logged_at >= LOG_INTERVAL_S]
        for key, kind in due:
            if not kind.unlogged:
                del self._kinds[key]
                continue
            request, response = key
            _log.log(
                _level(*key),
                "%d more %s %s %s answered with code %d in the last %d s",
                kind.unlogged,
                "request" if kind.unlogged == 1 else "requests",
                _name(request),
                "was" if kind.unlogged == 1 else "were",
                response,
                now - kind.logged_at,
            )
            kind.logged_at, kind.unlogged = now, 0


def _name(code: int) -> str:
    return f"{code} ({_NAMES[code]})" if code in _NAMES else str(code)


def _level(request: int, response: int) -> int:
    if request in STORING:
        return logging.WARNING
    if (request, response) == (RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST):
        return logging.DEBUG  # normal: every client asks before it sends the first message
    return logging.INFO
