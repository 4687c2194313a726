"""Requests about the roles of brokers, as replicas and administrators send them."""

import logging
from collections.abc import Callable

from firetrail.errors import FiretrailError
from firetrail.pace.reminders import Reminders
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

GONE_S = 3.0
"""The time of refused connections after which a broker counts as stopped."""

_log = logging.getLogger(__name__)


class Reachability:
    """Decides whether a broker is gone: its machine has refused all connections for ``GONE_S``."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Prepare; ``now`` is a monotonic clock, in seconds."""
        self._now = now
        self._refused_since: float | None = None

    def note(self, error: Exception | None) -> None:
        """Note why a request failed; None if it was answered."""
        causes = (error, error.__cause__ if error is not None else None)
        if not any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = self._now()

    @property
    def is_gone(self) -> bool:
        """Whether the broker is gone."""
        since = self._refused_since
        return since is not None and self._now() - since >= GONE_S


async def ask_status(
    client: RemotingClient,
    address: str,
    code: RequestCode = RequestCode.GET_REPLICA_STATUS,
    header: Header | None = None,
) -> ReplicaStatus:
    """Send a request that is answered with the status of a broker.

    Raises:
        OSError: The broker does not answer.
        RequestError: It refuses the request, or is not a Firetrail broker.
    """
    command = RemotingCommand(code, header.encode() if header is not None else {})
    return ReplicaStatus.decode((await client.ask(address, command)).content)


async def try_ask_status(
    client: RemotingClient,
    address: str,
    code: RequestCode = RequestCode.GET_REPLICA_STATUS,
    header: Header | None = None,
    reminders: Reminders | None = None,
    reachability: Reachability | None = None,
) -> ReplicaStatus | None:
    """Send the request as :func:`ask_status` does; return None if the broker does not answer or
    refuses.

    ``reminders`` decides whether a failure is logged; None logs every failure. The outcome is noted
    in ``reachability``.
    """
    try:
        status = await ask_status(client, address, code, header)
        if reachability is not None:
            reachability.note(None)
        return status
    except (OSError, FiretrailError) as error:
        if reachability is not None:
            reachability.note(error)
        failure = f"{code.name} of {address} failed: {error}"
        if reminders is None or reminders.is_due(failure):
            _log.info("%s", failure)
        return None
