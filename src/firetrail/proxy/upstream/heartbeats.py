"""Heartbeats to brokers on behalf of clients, so that brokers know who produces and consumes."""

from firetrail.proxy.schema.messages import ClientType
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.remoting.messages.bodies import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    ProducerData,
)
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand


def heartbeat_of(client: ProxyClient) -> RemotingCommand:
    """Return the heartbeat that tells a broker which groups the client belongs to."""
    is_simple = client.client_type == ClientType.SIMPLE_CONSUMER  # others are push consumers
    consume_type = ConsumeType.ACTIVELY if is_simple else ConsumeType.PASSIVELY
    body = HeartbeatData(
        client.client_id,
        [ProducerData(topic) for topic in sorted(client.published)],
        [
            ConsumerData(group, consume_type, subscription_data_set=list(subscriptions.values()))
            for group, subscriptions in sorted(client.subscriptions.items())
        ],
    )
    return RemotingCommand(
        RequestCode.HEART_BEAT, body=body.encode(), language=client.language, version=client.version
    )
