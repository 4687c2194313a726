"""Limits for what is created because a client mentions it: topics and consumer groups."""

from collections.abc import Callable

from firetrail.errors import RequestError
from firetrail.pace.token_bucket import TokenBucket
from firetrail.remoting.wire.codes import ResponseCode

BURST = 10_000
"""Number of topics or groups that may be created in a burst."""


class AutoCreation:
    """Decides whether another topic or group may be created.

    Args:
        code: The code of a refusal: that of a request for something that does not exist.
        setting: The setting with the largest number.
        most: Returns that number.
        rate: Returns how many may be created per second after a burst.
        now_ms: The clock.
    """

    def __init__(
        self,
        code: ResponseCode,
        setting: str,
        most: Callable[[], int],
        rate: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._code = code
        self._setting = setting
        self._most = most
        self._rate = rate
        self._now_ms = now_ms
        self._bucket = TokenBucket(BURST, rate(), now_ms() / 1000)

    def check(self, what: str, count: int) -> None:
        """Count a creation; raise RequestError if there are too many already, or too fast.

        Args:
            what: The subject to create, such as ``topic T1``.
            count: Their number.
        """
        if count >= self._most():
            raise RequestError(
                self._code,
                f"{what} is not created automatically: there are {count} already, and "
                f"{self._setting} is {self._most()}; create it with an administration tool, delete "
                "unused ones or raise the limit",
            )
        self._bucket.resize(BURST, self._rate())
        if not self._bucket.take(1, self._now_ms() / 1000):
            raise RequestError(
                self._code,
                f"{what} is not created automatically: more than auto_create_rate="
                f"{self._rate()} per second are created; try again, or create it with an "
                "administration tool",
            )
