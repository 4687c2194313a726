"""Requests about the roles of brokers, as replicas and administrators send them."""

from __future__ import annotations

import logging

from firetrail.errors import FiretrailError
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.header import Header
from firetrail.remoting.replica_bodies import ReplicaStatus
from firetrail.replication.reminders import Reminders

_log = logging.getLogger(__name__)


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
) -> ReplicaStatus | None:
    """Do the same, but return None if the broker does not answer or refuses.

    ``reminders`` decides whether a failure is logged. Default: each one is.
    """
    try:
        return await ask_status(client, address, code, header)
    except (OSError, FiretrailError) as error:
        failure = f"{code.name} of {address} failed: {error}"
        if reminders is None or reminders.is_due(failure):
            _log.info("%s", failure)
        return None
