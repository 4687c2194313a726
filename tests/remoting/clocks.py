"""A clock that the test sets."""


class Clock:
    """Returns ``now``, in seconds."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now
