"""The crowd of gRPC clients polls. What it measures is never asserted."""

import os

import pytest
from benchmarks import grpc_crowd
from benchmarks.grpc_servers import CROWD_TOPIC
from tests.broker.brokers import SMALL

from firetrail.broker.broker import Broker
from firetrail.proxy.proxy import Proxy
from firetrail.remoting.messages.bodies import TopicConfig


async def test_clients_poll_one_receive_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firetrail.proxy.calls.wait_time.POLL_MIN_S", 0.05)
    async with Broker.running(None, None, SMALL) as broker:
        broker.topics.put([TopicConfig(CROWD_TOPIC, 1, 1)])
        proxy = Proxy.of_broker(broker)
        await proxy.start("127.0.0.1", 0)
        crowd = grpc_crowd.GrpcCrowd(clients=3, seconds=0.5, poll_s=0)
        figures = await grpc_crowd.run(proxy.address, os.getpid(), crowd)
        await proxy.stop()
    assert figures["known"] == 3
    assert figures["polls"] >= 3
    assert figures["last"] > 0
