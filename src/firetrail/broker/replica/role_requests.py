"""Requests about the roles of brokers, as replicas and administrators send them."""

from __future__ import annotations

from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.header import Header
from firetrail.remoting.replica_bodies import ReplicaStatus


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
