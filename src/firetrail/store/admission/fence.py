"""The fence of a store: whether its broker is the master now, beyond doubt.

In a group, that is the time until which the lease lasts. Closing the gate is not enough for this: a
process can be suspended for any time, and may answer a request first when it continues. So each put
checks the clock. Outside of groups, the epochs of other masters decide.
"""

import math
from typing import Protocol

from firetrail.system import Clock


class Fence(Protocol):
    """Decides at any moment whether messages may be acknowledged, and tables changed."""

    @property
    def refusal(self) -> str:
        """The reason why nothing may be acknowledged now; empty if it may."""


class KnownFence:
    """The fence of a store without a group: the last reason that was found, if there is any.

    Attributes:
        refusal: The reason why nothing may be acknowledged; empty if it may.
    """

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal


class LeaseFence:
    """Allows acknowledgements while a lease lasts.

    Attributes:
        until: The time on the clock at which the lease ends for its holder; minus infinity without
            a lease. Threads may change it at any time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.until = -math.inf

    @property
    def refusal(self) -> str:
        """The reason why nothing may be acknowledged now; empty if it may."""
        if self._clock.since_boot() < self.until:
            return ""
        return (
            "this broker does not hold the lease of its group, so another one may be the master; "
            "send to the master that name servers name"
        )
