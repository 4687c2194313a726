"""The limit for frames that make work but carry no request."""

from firetrail.pace.token_bucket import TokenBucket
from firetrail.proxy.http2.codes import Http2Error
from firetrail.proxy.http2.faults import ConnectionFault
from firetrail.proxy.http2.limits import Http2Limits

REQUEST_CREDIT = 8
"""Number of idle frames that each request allows: pings that measure the connection, and window
updates."""
DATA_CREDIT = 4
"""The number that each frame of data allows."""
SENT_CREDIT = 1 / 512
"""The number that each sent byte allows."""


class AbuseLimits:
    """The buckets of one connection."""

    __slots__ = ("_credited_bytes", "_idle_frames", "_resets", "_young_s", "credit")

    def __init__(self, limits: Http2Limits, now: float) -> None:
        self._resets = TokenBucket(limits.resets, limits.resets_per_s, now)
        self._young_s = limits.reset_young_s
        self._idle_frames = TokenBucket(limits.idle_frames, limits.idle_frames_per_s, now)
        self._credited_bytes = 0
        self.credit: float = 0
        """Idle frames that the requests justify."""

    def idle_frame(self, now: float, sent_bytes: int, tokens: float = 1) -> None:
        """Count a frame without a request; ``sent_bytes`` is all data sent so far."""
        if self._idle_frames.take(tokens, now):
            return
        self._idle_frames.add(self.credit + (sent_bytes - self._credited_bytes) * SENT_CREDIT)
        self._credited_bytes = sent_bytes
        self.credit = 0
        if not self._idle_frames.take(tokens, now):
            raise _too_many("frames that carry no request")

    def violation(self, now: float) -> None:
        """Count a stream that the server had to reset."""
        if not self._resets.take(1, now):
            raise _too_many("streams that had to be reset")

    def client_reset(self, now: float, opened_at: float) -> None:
        """Count a stream that the client reset, if it did so right after opening it."""
        if now - opened_at < self._young_s and not self._resets.take(1, now):
            raise _too_many("streams that were reset at once")


def _too_many(what: str) -> ConnectionFault:
    return ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, f"too many {what}")
