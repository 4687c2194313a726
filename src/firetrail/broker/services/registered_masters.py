"""The master of a slave, as name servers know it."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.messages.bodies import MASTER_ID
from firetrail.settings.settings_table import Live

_log = logging.getLogger(__name__)


class RegisteredMaster(NamedTuple):
    """The master of a broker name, as a name server knows it."""

    address: str
    """``ip:port`` of its broker."""
    ha_address: str
    """``ip:port`` of its HA port; empty if it is not known."""


class RegisteredMasters:
    """The masters that name servers return to a slave, and the one that it follows.

    Attributes:
        known: The last known master of a slave; None if there was none yet. It is kept while no
            name server knows a master. A master that became known otherwise may be set, until name
            servers return another one.
        on_change: Called when the master has changed.
    """

    def __init__(self, config: Live[BrokerConfig], address: str) -> None:
        """Initialize.

        Args:
            config: Settings of the broker.
            address: ``ip:port`` that clients connect to.
        """
        self._live = config
        self._address = address
        self._named: dict[str, RegisteredMaster] = {}  # by the name servers that name them
        self.known: RegisteredMaster | None = None
        self.on_change: Callable[[RegisteredMaster], None] = lambda master: None

    def are_named(self) -> bool:
        """Whether a name server knows a master of this broker, which is a slave."""
        return bool(self._named)

    def note(self, name_server: str, master: RegisteredMaster | None) -> None:
        """Note the answer of a name server.

        While name servers disagree, the known master is kept as long as one of them returns it.

        Args:
            name_server: The address of the name server; empty for that of this process.
            master: The master that it names; None if it knows none, or did not answer.
        """
        if self._live.current.broker_id == MASTER_ID:
            return
        # A name server may still list this broker as the master that it was before.
        if master is None or master.address == self._address:
            self._named.pop(name_server, None)
        else:
            self._named[name_server] = master
        named = list(self._named.values())
        if not named or any(map(self._is_master, named)):
            return
        self.known = named[0]
        _log.info("the master of %s is %s", self._live.current.name, self.known.address)
        self.on_change(self.known)

    def _is_master(self, found: RegisteredMaster) -> bool:
        """Whether this is the known master. It provides its HA address if name servers have not."""
        known = self.known
        return (
            known is not None
            and known.address == found.address
            and known.ha_address in ("", found.ha_address)
        )
