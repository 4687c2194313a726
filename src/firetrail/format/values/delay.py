"""Delay levels: which level waits how long (``messageDelayLevel`` of the broker)."""

import re
from dataclasses import dataclass
from typing import Self

from firetrail.errors import ConfigError
from firetrail.format.values.integers import INT32_MAX, number_in

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNKNOWN_LEVEL_MS = 1000
"""The delay of level 0 and of negative levels, which the table does not contain."""

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]+)([smhd])")


def level_in(text: str | None) -> int:
    """Return the delay level in a value of DELAY; 0 for any other text, which producers may
    write."""
    return number_in(text, 0, INT32_MAX) or 0


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """Levels 1, 2, … and their waits. Level 0 means no delay.

    Attributes:
        waits_ms: The wait of each level in ms, level 1 first.
    """

    waits_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the levels of ``text``, such as ``"1s 5s 10s"``.

        It has one wait per level, separated by spaces; the units are ``s m h d``.
        """
        waits = []
        for word in text.split():
            match = _LEVEL.fullmatch(word)
            if match is None:
                raise ConfigError(
                    "messageDelayLevel", text, f"{word!r} is not a number with a unit s, m, h or d"
                )
            waits.append(int(match[1]) * _UNIT_MS[match[2]])
        if not waits:
            raise ConfigError("messageDelayLevel", text, "needs at least one level, such as '1s'")
        return cls(tuple(waits))

    @property
    def max_level(self) -> int:
        return len(self.waits_ms)

    def clamp(self, level: int) -> int:
        """Return the level that a message gets if it asks for ``level``: at most the highest."""
        return min(level, self.max_level)

    def wait_ms(self, level: int) -> int:
        """Return the wait of ``level`` in ms. Levels above the highest wait as long as it does."""
        level = self.clamp(level)
        return self.waits_ms[level - 1] if level > 0 else UNKNOWN_LEVEL_MS
