"""Reminders of something that lasts: it is logged once, and then at growing intervals."""

import re
from collections.abc import Callable

FIRST_S, LONGEST_S = 60.0, 3600.0
"""The first pause before the same text is logged again, which doubles, and the longest one."""
TEXTS_MAX = 32
"""Maximum number of remembered texts. Beyond it all are forgotten, and may be logged again."""
_NUMBER = re.compile(r"\d+")


class Reminders:
    """Decides whether a text is logged. Texts that differ only in numbers are the same."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Prepare; ``now`` is a monotonic clock, in seconds."""
        self._now = now
        self._due: dict[str, tuple[float, float]] = {}  # by text: the next time, and the pause

    def is_due(self, text: str) -> bool:
        """Return whether the text is to be logged now."""
        text, now = _NUMBER.sub("0", text), self._now()
        at, pause_s = self._due.get(text, (now, FIRST_S))
        if now < at:
            return False
        if len(self._due) >= TEXTS_MAX:
            self._due.clear()
        self._due[text] = (now + pause_s, min(2 * pause_s, LONGEST_S))
        return True

    def forget(self) -> None:
        """Log every text again: the situation was another one in between."""
        self._due.clear()
