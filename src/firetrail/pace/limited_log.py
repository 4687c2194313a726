"""Log lines that peers can cause: a few of each kind, then a count."""

import logging
import threading
from collections.abc import Callable

from firetrail.pace.token_bucket import TokenBucket
from firetrail.text import printable

BURST = 10
"""Lines of one kind that are logged at once."""
PER_S = 0.1
"""Lines of one kind that are logged per second after that."""
KINDS_MAX = 1_000
"""Kinds that are counted separately. Lines of further kinds share one count."""
LENGTH_MAX = 1_000
"""Characters of a line; the rest of a longer one is left out."""
_OTHER = "other"


class LimitedLog:
    """Logs at most some lines of each kind, and escapes control characters in them.

    All threads may use it.

    Args:
        logger: Where the lines go.
        now: A monotonic clock in seconds.
        burst: Lines of one kind that are logged at once. Default: 10.
        per_s: Lines of one kind that are logged per second after that. Default: 0.1.
    """

    def __init__(
        self,
        logger: logging.Logger,
        now: Callable[[], float],
        *,
        burst: int = BURST,
        per_s: float = PER_S,
    ) -> None:
        self._logger = logger
        self._now = now
        self._burst, self._per_s = burst, per_s
        self._guard = threading.Lock()  # over what follows
        self._kinds: dict[str, TokenBucket] = {}
        self._left_out: dict[str, int] = {}

    def log(self, level: int, kind: str, text: str, error: BaseException | None = None) -> None:
        """Log a line, or count it.

        Args:
            level: The level, such as ``logging.WARNING``.
            kind: Lines of one kind share a limit.
            text: The line. Control characters are escaped.
            error: The error to log with its traceback. Default: none.
        """
        now = self._now()
        with self._guard:
            if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
                kind = _OTHER
            bucket = self._kinds.get(kind)
            if bucket is None:
                bucket = self._kinds[kind] = TokenBucket(self._burst, self._per_s, now)
            if not bucket.take(1, now):
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return
            more = self._left_out.pop(kind, 0)
        before = f" ({more} more lines like this one were not logged)" if more else ""
        self._logger.log(level, "%s%s", printable(text, LENGTH_MAX), before, exc_info=error)
