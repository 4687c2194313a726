"""The peers that may connect to the HA port, whose protocol has no authentication.

A peer that connects gets the whole log, and a message counts as replicated when it confirms it. By
default only this machine, the brokers that name servers list under the name of this broker, and the
members of its group may connect; ``ha_allowed_peers`` replaces this rule.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.broker_config_groups import networks_in
from firetrail.errors import ConfigError
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.settings.settings_table import Live
from firetrail.system import Clock

ASK_S = 3.0
"""The time that a connection waits for the answers of name servers."""
ASK_INTERVAL_S = 1.0
"""Minimum pause between two requests to name servers, regardless of how many unknown peers
connect."""

_log = logging.getLogger(__name__)


class HAPeers:
    """Decides whether a peer may connect."""

    def __init__(
        self,
        config: Live[BrokerConfig],
        address: str,
        members: Callable[[], Awaitable[Iterable[str]]],
        clock: Clock,
    ) -> None:
        """Create it in the event loop.

        Args:
            config: The settings in force.
            address: ``ip:port`` of this broker.
            members: Returns the addresses of all brokers with the name of this one.
            clock: The time.
        """
        self._live = config
        self._address = address
        self._members = members
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._known: frozenset[str] = frozenset()
        self._asked_at = -ASK_INTERVAL_S

    def refusal(self, ip: str) -> str:
        """Return why a peer may not connect; empty if it may. Called in another thread."""
        config = self._live.current
        peer = ip_address(ip.partition("%")[0])
        if config.ha_allowed_peers:
            networks = networks_in(config.ha_allowed_peers)
            allowed = any(peer.version == each.version and peer in each for each in networks)
            return "" if allowed else f"{ip} is not among ha_allowed_peers"
        own = {split_address(self._address)[0], config.ha_host}
        if peer.is_loopback or ip in own or self._is_member(ip):
            return ""
        return (
            f"name servers know no broker named {config.name} at {ip}, and its group has no member "
            "there; if it is a replica, set ha_allowed_peers to the addresses of all replicas"
        )

    def _is_member(self, ip: str) -> bool:
        if ip not in self._known:
            self._ask()
        return ip in self._known

    def _ask(self) -> None:
        """Ask name servers for the members, unless they were asked recently."""
        now = self._clock.monotonic()
        if now - self._asked_at < ASK_INTERVAL_S:
            return
        self._asked_at = now
        asking = asyncio.run_coroutine_threadsafe(self._find(), self._loop)
        try:
            self._known = asking.result(ASK_S)
        except TimeoutError:
            asking.cancel()
            _log.warning("name servers have not listed the brokers within %g s", ASK_S)

    async def _find(self) -> frozenset[str]:
        found: set[str] = set()
        for address in await self._members():
            try:
                infos = await self._loop.getaddrinfo(*split_address(address))
            except (OSError, ConfigError) as error:
                _log.warning("the address of broker %s cannot be found: %s", address, error)
                continue
            found |= {str(info[4][0]) for info in infos}
        return frozenset(found)
