"""The rule about servers without access control: clients on other machines must not reach them."""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import Protocol
from weakref import WeakKeyDictionary

from firetrail.errors import ConfigError
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsMode

LOCALHOST = "localhost"

_log = logging.getLogger(__name__)
_warned: WeakKeyDictionary[Checking, set[str]] = WeakKeyDictionary()


def is_loopback(bind: str) -> bool:
    """Return whether only clients on the same machine can reach an address.

    Args:
        bind: The address or the host name that a server listens on. The address of a name may
            change, so of all names only ``localhost`` counts.
    """
    try:
        return ip_address(bind).is_loopback
    except ValueError:
        return bind == LOCALHOST


class Checking(Protocol):
    """The guard of a server, as far as the rule depends on it."""

    @property
    def checks_permissions(self) -> bool:
        """Whether a signed request also needs a permission."""


def check_exposure(
    bind: str, tls: ServerTls | None, guard: Checking | None, *, insecure: bool
) -> None:
    """Raise ConfigError if clients on other machines could do everything, and that is not allowed.

    A warning is logged if they need a signature, but the traffic is not encrypted, or users need no
    permissions. Broker, name server and gRPC service of one process have the same guard, and do not
    repeat it.

    Args:
        bind: The address or the host name to listen on.
        tls: The TLS of the port; None for plaintext.
        guard: Checks that every request is signed; None if access control is switched off.
        insecure: Whether the user accepts that every client may do everything.

    Raises:
        ConfigError: Neither signatures nor certificates of clients are required.
    """
    if insecure or is_loopback(bind) or (tls is not None and tls.requires_certificates):
        return
    if guard is None:
        raise ConfigError(
            "bind",
            bind,
            "every client that reaches this address could do everything, because access control is"
            " switched off; switch it on (authenticationEnabled=true, or 'firetrail up --secure"
            " FOLDER'), listen on 127.0.0.1, or accept it with --insecure (in Python:"
            " insecure=True)",
        )
    if not guard.checks_permissions:
        _warn(
            guard,
            f"the server listens on {bind}, and every user may send, read and delete everything,"
            " because permissions are not checked; set authorizationEnabled=true",
        )
    if tls is None or tls.mode is not TlsMode.ENFORCING:
        _warn(
            guard,
            f"the server listens on {bind} without enforcing TLS: those who can read the traffic"
            " can read all messages and repeat signed requests; set --tls-mode enforcing, or"
            " tls.server.mode=enforcing in the file of --tls-config (tls.properties)",
        )


def _warn(guard: Checking, text: str) -> None:
    """Log a warning, once for all servers of a guard."""
    warned = _warned.setdefault(guard, set())
    if text not in warned:
        warned.add(text)
        _log.warning("%s", text)
