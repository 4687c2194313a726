"""Log lines for rejected requests: one of a kind per minute, with the number of the others."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.messages.requests import STORING
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

LOG_INTERVAL_S = 60.0
"""Interval between two lines about the same kind."""

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


class Refusals:
    """Logs rejections by the codes of request and response. ``now`` is a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._log = LimitedLog(_log, now, burst=1, per_s=1 / LOG_INTERVAL_S)

    def note(self, peer: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Log a request that was answered with a code other than success, or count it."""
        key = request.code, response.code
        if response.code not in _ORDINARY:
            self._log.log(
                _level(*key),
                f"{request.code} {response.code}",
                f"request {_name(request.code)} of {peer} is answered with code {response.code}: "
                f"{response.remark or 'no reason given'}",
            )


def _name(code: int) -> str:
    return f"{code} ({_NAMES[code]})" if code in _NAMES else str(code)


def _level(request: int, response: int) -> int:
    if request in STORING:
        return logging.WARNING
    if (request, response) == (RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST):
        return logging.DEBUG  # normal: every client asks before it sends the first message
    return logging.INFO
