"""A token bucket: limits a rate, and allows bursts."""


class TokenBucket:
    """A bucket that is full at first, and is refilled by time and by :meth:`add`.

    The caller passes the time. A clock that is set back adds nothing.

    Args:
        size: Tokens that fit into the bucket: the largest burst.
        per_s: Tokens that are added per second.
        now: The current time in seconds.
    """

    __slots__ = ("_at", "_per_s", "_size", "_tokens")

    def __init__(self, size: float, per_s: float, now: float) -> None:
        self._size = size
        self._per_s = per_s
        self._tokens = size
        self._at = now

    def take(self, tokens: float, now: float) -> bool:
        """Take tokens; return False, and take none, if there are too few."""
        if self._tokens < tokens and self.level(now) < tokens:
            return False
        self._tokens -= tokens
        return True

    def charge(self, tokens: float) -> None:
        """Take tokens even if there are too few; the level is then below 0."""
        self._tokens -= tokens

    def add(self, tokens: float) -> None:
        """Put tokens into the bucket as far as they fit."""
        self._tokens = min(self._size, self._tokens + tokens)

    def resize(self, size: float, per_s: float) -> None:
        """Change the size and the rate, also for the time since the last refill."""
        self._size, self._per_s = size, per_s

    def level(self, now: float) -> float:
        """Return the number of tokens."""
        self.add(max(now - self._at, 0.0) * self._per_s)
        self._at = now
        return self._tokens

    def is_full(self, now: float) -> bool:
        """Whether the bucket is as it was at the start."""
        return self.level(now) >= self._size

    def debt_s(self, now: float) -> float:
        """Return the seconds until the level is 0 again; 0 if it is not below."""
        return max(-self.level(now), 0.0) / self._per_s
