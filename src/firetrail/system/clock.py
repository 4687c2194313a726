"""The clock: wall time for timestamps, monotonic time for timeouts, and pauses."""

import time
from pathlib import Path
from uuid import UUID

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """Wall time for timestamps, monotonic time for timeouts. Tests replace it."""

    time_ns = staticmethod(time.time_ns)
    """Return the wall time in nanoseconds since 1970."""

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970."""
        return self.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Return a time in seconds that never runs backwards."""

    def since_boot(self) -> float:
        """Return a monotonic time in seconds that continues while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> bytes:
        """Return 16 bytes that differ after the machine has started again; zeros if unknown."""
        try:
            return UUID(_BOOT_ID.read_text(encoding="ascii").strip()).bytes
        except (OSError, ValueError):
            return bytes(16)

    def sleep_ms(self, pause_ms: int) -> None:
        """Wait.

        Args:
            pause_ms: The time, in milliseconds.
        """
        time.sleep(pause_ms / 1000)
