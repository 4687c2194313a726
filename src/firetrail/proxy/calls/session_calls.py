"""Heartbeats and the end of clients, and the calls for lite topics, which are not supported."""

from collections.abc import Awaitable

from firetrail.errors import ProxyError, RequestError
from firetrail.proxy.calls.client_settings import check_type
from firetrail.proxy.calls.resource_names import group_name
from firetrail.proxy.calls.status_codes import OK
from firetrail.proxy.schema.messages import (
    ClientType,
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
)
from firetrail.proxy.transport.call import Call
from firetrail.proxy.upstream.grpc_clients import ProxyClient, ProxyClients
from firetrail.proxy.upstream.interface import RegisteringBrokers
from firetrail.remoting.wire.codes import ResponseCode


class SessionCalls:
    """Handles Heartbeat, NotifyClientTermination and SyncLiteSubscription."""

    def __init__(self, brokers: RegisteringBrokers, clients: ProxyClients) -> None:
        self._brokers = brokers
        self._clients = clients

    def heartbeat(
        self, call: Call, client: ProxyClient, request: HeartbeatRequest
    ) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
        """Refresh the registration of a client, which may not have sent its settings yet."""
        kind = client.client_type or request.client_type
        if kind == ClientType.CLIENT_TYPE_UNSPECIFIED:
            raise ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, "the client has not sent its type")
        if kind != ClientType.PRODUCER:
            check_type(kind, group_name(request.group))
        client.client_type = kind
        try:
            beat = self._brokers.heartbeat(client)
        except RequestError as error:
            _accept(error)
            beat = None
        return HeartbeatResponse(status=OK) if beat is None else self._beaten(beat)

    async def _beaten(self, beat: Awaitable[None]) -> HeartbeatResponse:
        try:
            await beat
        except RequestError as error:
            _accept(error)
        return HeartbeatResponse(status=OK)

    def terminate(
        self, call: Call, client: ProxyClient, request: NotifyClientTerminationRequest
    ) -> NotifyClientTerminationResponse:
        """Forget a client, also one that was not known."""
        self._clients.end(client)
        return NotifyClientTerminationResponse(status=OK)

    def sync_lite(
        self, call: Call, client: ProxyClient, request: SyncLiteSubscriptionRequest
    ) -> SyncLiteSubscriptionResponse:
        """Refuse the subscription to lite topics."""
        raise ProxyError(Code.UNSUPPORTED, "lite topics are not supported")


def _accept(error: RequestError) -> None:
    """Accept that a group does not exist yet, as RocketMQ does; raise any other error."""
    if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        raise error
