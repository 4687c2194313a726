"""Limits for each address that clients connect from: connections, requests and bytes."""

from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from firetrail.pace.token_bucket import TokenBucket
from firetrail.remoting.servers.client_limits import COSTLY_BURST_S, COSTLY_SHARE, ConnectionLimits

BURST_S = 2.0
"""The burst that a rate allows, in seconds of that rate."""
NETWORK_BITS = 64
"""An IPv6 client can choose the other bits of its address."""
IDLE_MAX = 10_000
"""ClientAddresses without a connection whose rates are kept."""
_HOST_BITS = 128 - NETWORK_BITS


class RequestRates:
    """The rates at which one address, or one user, sends requests.

    Args:
        request_rate: Requests per second; 0 means no limit.
        byte_rate: Bytes of requests per second; 0 means no limit.
        now: The current time in seconds.
    """

    __slots__ = ("_bytes", "_requests")

    def __init__(self, request_rate: int, byte_rate: int, now: float) -> None:
        self._requests = _bucket(request_rate, now)
        self._bytes = _bucket(byte_rate, now)

    def charge(self, requests: int, size: int, now: float) -> float:
        """Count requests; return the seconds for which no more may be sent."""
        if self._requests is not None:
            self._requests.charge(requests)
        if self._bytes is not None:
            self._bytes.charge(size)
        return self.pause_s(now)

    def admits(self, size: int, now: float) -> bool:
        """Count a request unless it comes during a pause; return whether it may be handled.

        This is for protocols in which a request is refused without a pause for its connection.
        """
        if self.pause_s(now):
            return False
        self.charge(1, size, now)
        return True

    def pause_s(self, now: float) -> float:
        """Return the seconds for which no more requests may be sent."""
        buckets = (self._requests, self._bytes)
        return max(0.0 if bucket is None else bucket.debt_s(now) for bucket in buckets)


class AddressShare(RequestRates):
    """The connections and rates of one address."""

    __slots__ = ("connections", "costly", "opened")

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        super().__init__(limits.request_rate, limits.byte_rate, now)
        self.connections = 0
        self.opened = _bucket(limits.connection_rate, now)
        self.costly = TokenBucket(COSTLY_BURST_S, COSTLY_SHARE, now)

    def is_idle(self, now: float) -> bool:
        """Whether nothing has to be remembered."""
        buckets = (self.opened, self._requests, self._bytes, self.costly)
        return not self.connections and all(b is None or b.is_full(now) for b in buckets)


class ClientAddresses:
    """The shares of all addresses with connections, and of those that had some lately.

    Args:
        limits: The limits of the server.
        now: A monotonic clock in seconds.
    """

    def __init__(self, limits: ConnectionLimits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._shares: dict[str, AddressShare] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def open(self, host: str) -> AddressShare | str:
        """Count a new connection; return its share, or why it is refused."""
        limits, now = self._limits, self._now()
        key, is_loopback = _key(host)
        share = self._shares.get(key)
        if share is None:
            self._make_room(now)
            share = self._shares[key] = AddressShare(limits, now)
        if not is_loopback or limits.limit_loopback:
            if 0 < limits.connections_per_address <= share.connections:
                return (
                    f"{key} has {share.connections} connections, the limit for an address; "
                    "connections_per_address changes it"
                )
            if share.opened is not None and not share.opened.take(1, now):
                return (
                    f"{key} opens more than {limits.connection_rate} connections per second; "
                    "connection_rate_per_address changes the limit"
                )
        share.connections += 1
        return share

    def close(self, share: AddressShare) -> None:
        """Count the end of a connection."""
        share.connections -= 1

    def sweep(self) -> None:
        """Forget addresses that are no longer connected; called about once per second."""
        now = self._now()
        for key in [key for key, share in self._shares.items() if share.is_idle(now)]:
            del self._shares[key]

    def _make_room(self, now: float) -> None:
        if len(self._shares) < IDLE_MAX:
            return
        for key, share in self._shares.items():
            if not share.connections:
                del self._shares[key]
                return


def _bucket(rate: int, now: float) -> TokenBucket | None:
    return TokenBucket(rate * BURST_S, rate, now) if rate else None


def counted_as(host: str) -> str:
    """Return the address under which a client is counted: of an IPv6 address, its network."""
    return _key(host)[0]


def source_of(peer: str) -> str:
    """Return the IP address of a peer, which is written as ``ip:port`` or ``[ip]:port``."""
    return peer.rpartition(":")[0].strip("[]")


@lru_cache(IDLE_MAX)
def _key(host: str) -> tuple[str, bool]:
    """Return the text under which an address is counted, and whether it is this machine's."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # a socket that is not of the Internet
        return host, True
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return _key(str(address.ipv4_mapped))
        network = IPv6Address(int(address) >> _HOST_BITS << _HOST_BITS)
        return f"{network}/{NETWORK_BITS}", address.is_loopback
    return str(address), address.is_loopback
