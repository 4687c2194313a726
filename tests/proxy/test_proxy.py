"""A proxy on a real port, with clients that we did not write."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.broker.brokers import SMALL
from tests.client.clusters import until
from tests.connections import connected
from tests.helpers import PATIENCE_S

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import AddressInUseError, ConfigError
from firetrail.format.kernels.draft import Message as StoredMessage
from firetrail.proxy.calls.messaging_service import SERVICE
from firetrail.proxy.proxy import Proxy
from firetrail.proxy.proxy_config import ProxyConfig
from firetrail.proxy.schema.messages import Broker as BrokerResource
from firetrail.proxy.schema.messages import (
    Code,
    Duration,
    MessageQueue,
    Publishing,
    QueryRouteRequest,
    QueryRouteResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Resource,
    Settings,
    TelemetryCommand,
)
from firetrail.proxy.transport.grpc_limits import GrpcLimits, grpc_limits
from firetrail.remoting.messages.bodies import TopicConfig

METADATA = (("x-mq-client-id", "c1"), ("x-mq-language", "PYTHON"))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker.running(None, None, SMALL) as broker:
        broker.topics.put([TopicConfig("T", 1, 1)])
        yield broker


@pytest.fixture
async def proxy(broker: Broker) -> AsyncIterator[Proxy]:
    proxy = Proxy.of_broker(broker)
    await proxy.start("127.0.0.1", 0)
    yield proxy
    await proxy.stop()


def route_call(channel: Any) -> Any:
    return channel.unary_unary(
        f"{SERVICE}QueryRoute",
        request_serializer=QueryRouteRequest.SerializeToString,
        response_deserializer=QueryRouteResponse.FromString,
    )


async def test_a_route_leads_back_to_the_proxy(proxy: Proxy) -> None:
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        request = QueryRouteRequest(topic=Resource(name="T"))
        response = await route_call(channel)(request, metadata=METADATA, timeout=PATIENCE_S)
    assert response.status.code == Code.OK
    (address,) = response.message_queues[0].broker.endpoints.addresses
    assert f"{address.host}:{address.port}" == proxy.address


async def test_an_address_has_a_rate_of_calls(tmp_path: Path) -> None:
    config = BrokerConfig(request_rate_per_address=1, byte_rate_per_address=10_000)
    async with Broker.running(tmp_path, config, SMALL) as broker:
        proxy = Proxy.of_broker(broker)
        await proxy.start("127.0.0.1", 0)
        request = QueryRouteRequest(topic=Resource(name="T"))
        async with grpc.aio.insecure_channel(proxy.address) as channel:
            for _ in range(1000):
                response = await route_call(channel)(request, metadata=METADATA, timeout=PATIENCE_S)
                if response.status.code == Code.TOO_MANY_REQUESTS:
                    break
        await proxy.stop()
    assert response.status.message.startswith("127.0.0.1 sends more than request_rate_per_address")


def test_the_settings_have_the_defaults_of_the_limits() -> None:
    assert grpc_limits(ProxyConfig()) == GrpcLimits()
    config = ProxyConfig(
        max_connections=1,
        connections_per_address=2,
        connection_rate_per_address=3,
        request_rate_per_address=4,
        byte_rate_per_address=5,
        limit_loopback=True,
    )
    assert grpc_limits(config) == GrpcLimits(1, 2, 3, 4, 5, limit_loopback=True)


async def test_the_port_serves_tls_as_well(proxy: Proxy) -> None:
    """The certificate is not verified; Java and Go clients do not verify it either."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    async with connected(proxy.address, tls=context) as (_, writer):
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"


def receive_call(channel: Any, broker: Broker) -> Any:
    """A receive of one message, which waits for up to 20 s."""
    request = ReceiveMessageRequest(
        group=Resource(name="G"),
        message_queue=MessageQueue(
            topic=Resource(name="T"), id=-1, broker=BrokerResource(name=broker.config.name)
        ),
        batch_size=1,
        invisible_duration=Duration(seconds=30),
    )
    receive = channel.unary_stream(
        f"{SERVICE}ReceiveMessage",
        request_serializer=ReceiveMessageRequest.SerializeToString,
        response_deserializer=ReceiveMessageResponse.FromString,
    )
    return receive(request, metadata=METADATA, timeout=60)


async def test_a_receive_that_the_client_cancels_takes_no_message(
    broker: Broker, proxy: Proxy
) -> None:
    held = broker._parts.state.long_polling._held
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        call = receive_call(channel, broker)
        await until(lambda: held)
        call.cancel()
        await until(lambda: not held)
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        call = receive_call(channel, broker)
        await until(lambda: held)
        await channel.close(None)  # the connection is lost
        await until(lambda: not held)
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        broker.store.put(StoredMessage("T", b"hello", queue_id=0))
        frames = [frame async for frame in receive_call(channel, broker)]
        assert [frame.message.system_properties.delivery_attempt for frame in frames[1:-1]] == [1]


async def test_a_waiting_receive_does_not_delay_the_stop(broker: Broker, proxy: Proxy) -> None:
    broker.groups.require("G")
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        call = receive_call(channel, broker)
        first = asyncio.ensure_future(call.read())
        await until(lambda: broker._parts.state.long_polling._held)
        await proxy.stop()
        assert (await first).status.code == Code.MESSAGE_NOT_FOUND


async def test_telemetry_registers_a_producer_until_the_stop(broker: Broker, proxy: Proxy) -> None:
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        stream = channel.stream_stream(
            f"{SERVICE}Telemetry",
            request_serializer=TelemetryCommand.SerializeToString,
            response_deserializer=TelemetryCommand.FromString,
        )(metadata=METADATA)
        settings = Settings(publishing=Publishing(topics=[Resource(name="T")]))
        await stream.write(TelemetryCommand(settings=settings))
        answer = await stream.read()
        assert answer.status.code == Code.OK
        assert answer.settings.publishing.max_body_size == 4 << 20
        assert [one.client_id for one in broker.clients.producers_of("T")] == ["c1"]
        await proxy.stop()
    assert not list(broker.clients.producers_of("T"))


async def test_a_port_in_use_is_named(proxy: Proxy, broker: Broker) -> None:
    port = int(proxy.address.rpartition(":")[2])
    with pytest.raises(AddressInUseError, match=f"127.0.0.1:{port}: the port is in use"):
        await Proxy.of_broker(broker).start("127.0.0.1", port)


async def test_a_proxy_that_listens_everywhere_advertises_the_broker(broker: Broker) -> None:
    proxy = Proxy.of_broker(broker)
    with pytest.raises(ConfigError, match="every client that reaches this address"):
        await proxy.start("0.0.0.0", 0)
    await proxy.start("0.0.0.0", 0, advertised="192.0.2.9", insecure=True)
    assert proxy.address.startswith("192.0.2.9:")
    await proxy.stop()


async def test_a_certificate_comes_from_files(tmp_path: Path) -> None:
    config = BrokerConfig(tls_certificate=str(tmp_path / "none.pem"), tls_key="key.pem")
    with pytest.raises(ConfigError, match=r"none\.pem.*does not exist"):
        Broker(tmp_path, config)


async def test_a_proxy_that_was_not_started_stops(broker: Broker) -> None:
    await Proxy.of_broker(broker).stop()
