"""Flow control of an HA connection: how much may be sent now, and how much was sent recently."""

from collections.abc import Callable

from firetrail.pace.token_bucket import TokenBucket

BURST_S = 0.1
"""The burst of a connection, in seconds of its rate."""
BURST_MIN = 1 << 10
"""The smallest burst in bytes, so that a low rate does not lead to tiny transfers."""


class TransferRate:
    """Limits the bytes of a connection to a rate. Headers and heartbeats count as well."""

    def __init__(self, rate: Callable[[], int | None], now: float) -> None:
        """Start with the smallest burst.

        Args:
            rate: Returns the bytes per second that are allowed now, None for any number.
            now: The current monotonic time.
        """
        self._rate = rate
        self._bucket = TokenBucket(BURST_MIN, 0, now)

    def allowance(self, now: float) -> int | None:
        """Return the number of bytes that may be sent now; None if there is no limit.

        It is 0 until half of a burst may be sent, because small transfers are inefficient.
        """
        rate = self._rate()
        if rate is None:
            return None
        burst = max(rate * BURST_S, BURST_MIN)
        self._bucket.resize(burst, rate)
        tokens = self._bucket.level(now)
        return int(tokens) if tokens >= burst / 2 else 0

    def take(self, size: int) -> None:
        """Count sent bytes. A heartbeat may exceed the allowance."""
        self._bucket.charge(size)


class RateMeter:
    """Measures bytes per second, over windows of one second."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._count = 0
        self._last = 0

    def note(self, size: int, now: float) -> None:
        """Count bytes."""
        self._roll(now)
        self._count += size

    def per_second(self, now: float) -> int:
        """Return the bytes of the last full second."""
        self._roll(now)
        return self._last

    def _roll(self, now: float) -> None:
        passed = now - self._began
        if passed >= 1:
            self._last = int(self._count / passed)
            self._count = 0
            self._began = now
