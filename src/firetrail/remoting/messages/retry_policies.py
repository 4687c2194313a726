"""The retry policies of consumer groups: after which delay a failed message is redelivered (5.x).

gRPC clients get the policy of their group from the server and apply it themselves. A server applies
it where it postpones a message on its own.
"""

from dataclasses import dataclass, field

from firetrail.remoting.messages.typed_body import Body

CUSTOMIZED = "CUSTOMIZED"
EXPONENTIAL = "EXPONENTIAL"
POLICY_TYPES = (CUSTOMIZED, EXPONENTIAL)

DELAYS_MS = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""RocketMQ's delays by attempt; its delay levels are the same."""
DELAYS_MAX = 1_000
"""Maximum number of delays in a policy that an administrator sets."""
DELAY_MAX_MS = 365 * 24 * 3_600_000
"""Maximum delay in a policy that an administrator sets: a year."""

_SKIPPED_BY_SERVERS = 2
"""The index of the delay of a server's first retry: the third one, as for remoting clients."""
_EXPONENT_MAX = 32


@dataclass(frozen=True, slots=True)
class ExponentialRetryPolicy(Body):
    """Delays that grow by a factor.

    Args:
        initial: The first delay, in ms. Default: 5000.
        max: The longest delay, in ms. Default: 7200000, two hours.
        multiplier: The factor. Default: 2.
    """

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2

    def delay_ms(self, reconsume_times: int) -> int:
        """Return the delay before a server redelivers a message.

        Args:
            reconsume_times: The number of times that the message was redelivered before.
        """
        delay: int = self.initial * self.multiplier ** min(max(reconsume_times, 0), _EXPONENT_MAX)
        return max(min(self.max, delay), 0)

    def refusal(self) -> str:
        """Return why this policy is not allowed; empty if it is allowed."""
        if not 1 <= self.initial <= self.max <= DELAY_MAX_MS:
            return (
                f"initial is {self.initial} and max is {self.max}, but both must be from 1 to "
                f"{DELAY_MAX_MS} ms, and initial at most max"
            )
        if not 1 <= self.multiplier <= DELAYS_MAX:
            return f"multiplier is {self.multiplier}, but it must be from 1 to {DELAYS_MAX}"
        return ""


@dataclass(frozen=True, slots=True)
class CustomizedRetryPolicy(Body):
    """A list of delays.

    Args:
        next: The delays by attempt, in ms; the last one counts for all further attempts. Default:
            RocketMQ's delays, from a second to two hours.
    """

    next: list[int] = field(default_factory=lambda: list(DELAYS_MS))

    def delay_ms(self, reconsume_times: int) -> int:
        """Return the delay before a server redelivers a message.

        Args:
            reconsume_times: The number of times that the message was redelivered before.
        """
        delays = self.next or DELAYS_MS
        at = min(max(reconsume_times, 0) + _SKIPPED_BY_SERVERS, len(delays) - 1)
        return max(delays[at], 0)

    def refusal(self) -> str:
        """Return why this policy is not allowed; empty if it is allowed."""
        if not 1 <= len(self.next) <= DELAYS_MAX:
            return f"next has {len(self.next)} delays, but it must have 1 to {DELAYS_MAX}"
        for delay in self.next:
            if not 0 <= delay <= DELAY_MAX_MS:
                return f"a delay in next is {delay}, but it must be from 0 to {DELAY_MAX_MS} ms"
        return ""


RetryPolicy = ExponentialRetryPolicy | CustomizedRetryPolicy


@dataclass(frozen=True, slots=True)
class GroupRetryPolicy(Body):
    """The retry policy of a consumer group.

    Args:
        type: ``CUSTOMIZED`` (the default) or ``EXPONENTIAL``.
        exponential_retry_policy: The delays of the type ``EXPONENTIAL``. Default: none.
        customized_retry_policy: The delays of the type ``CUSTOMIZED``. Default: none.
    """

    type: str = CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None

    @property
    def for_clients(self) -> RetryPolicy:
        """The policy that clients apply. Details that are missing have their defaults."""
        if self.type == EXPONENTIAL:
            return self.exponential_retry_policy or ExponentialRetryPolicy()
        return self.customized_retry_policy or CustomizedRetryPolicy()

    @property
    def for_servers(self) -> RetryPolicy:
        """The policy that a server applies. As in Java, missing details mean RocketMQ's delays."""
        if self.type == EXPONENTIAL and self.exponential_retry_policy is not None:
            return self.exponential_retry_policy
        customized = self.customized_retry_policy if self.type == CUSTOMIZED else None
        return customized or CustomizedRetryPolicy()

    def refusal(self) -> str:
        """Return why an administrator may not set this policy; empty if it is allowed."""
        if self.type not in POLICY_TYPES:
            return f"type is {self.type!r:.40}, but it must be {' or '.join(POLICY_TYPES)}"
        for policy in (self.exponential_retry_policy, self.customized_retry_policy):
            if policy is not None and (refusal := policy.refusal()):
                return refusal
        return ""
