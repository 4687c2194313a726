"""The queues of a topic, and those that its routes offer, are the same for all who ask."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import Fields, Talk
from tests.rules.ways import all_ways

from firetrail.broker.broker_config import BrokerConfig
from firetrail.client.cluster.topic_route import queues_of
from firetrail.pipeline.wire.request_retry import _topic_cause
from firetrail.proxy.calls.queue_choice import open_queues
from firetrail.proxy.calls.route_calls import numbered_queues
from firetrail.proxy.schema.messages import Permission as GrpcPermission
from firetrail.proxy.upstream.embedded import EmbeddedBroker
from firetrail.remoting.messages.admin.admin_bodies import ResetOffsets, TimeSpans, TopicStats
from firetrail.remoting.messages.bodies import (
    BrokerData,
    LockBody,
    LockedBody,
    MessageQueue,
    QueueData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand


@pytest.mark.parametrize(("reads", "writes"), [(4, 4), (2, 4), (4, 2), (0, 3), (3, 0)])
async def test_the_queues_of_a_topic(reads: int, writes: int, talk: Talk) -> None:
    """A queue that can only be read or written has offsets, statistics and a place for messages."""
    most = max(reads, writes)
    talk.broker.topics.put([TopicConfig("T", reads, writes)])
    talk.broker.groups.put([SubscriptionGroupConfig("CG")])
    every = list(range(most))
    asked = list(range(most + 1))
    named: Fields = {"topic": "T", "group": "CG", "timestamp": -1, "isForce": "true"}

    sent = [queue_id for queue_id in asked if (await talk.send("T", e=queue_id)).code == 0]
    committed = [one for one in asked if (await talk.commit(0, "CG", "T", one)).code == 0]
    body = (await talk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, named)).content
    reset = ResetOffsets.decode(body).offset_table
    body = (await talk.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T")).content
    stats = TopicStats.decode(body).offset_table
    body = (await talk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="CG")).content
    spans = TimeSpans.decode(body).consume_time_span_set
    wanted = [MessageQueue("T", talk.broker.config.name, queue_id) for queue_id in asked]
    lock = LockBody("CG", "c1", wanted)
    body = (await talk.ask(RequestCode.LOCK_BATCH_MQ, body=lock.encode())).content
    locked = LockedBody.decode(body).locked
    found = [
        sent,
        committed,
        sorted(queue.queue_id for queue in reset),
        sorted(queue.queue_id for queue in stats),
        sorted(span.message_queue.queue_id for span in spans),
        sorted(queue.queue_id for queue in locked),
    ]
    assert found == [every] * len(found)


@pytest.mark.parametrize("text", ["", "_SYS_MSG_PRIORITY_\x013\x02"])
async def test_a_topic_without_writable_queues_has_none_to_choose(text: str, talk: Talk) -> None:
    talk.broker.topics.put([TopicConfig("T", 4, 0)])
    answer = await talk.send("T", e=-1, i=text)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "queueId[-1] is illegal, topic T has 4 queues" in (answer.remark or "")


@pytest.mark.parametrize("permission", [0, 2, 4, 6])
async def test_the_route_of_a_topic(permission: int, tmp_path: Path) -> None:
    async with all_ways(tmp_path, BrokerConfig(permission=permission)) as ways:
        ways.create("T", 3)
        broker = ways.talk.broker
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        answer = await ways.talk.client.request(broker.namesrv, command)
        while answer.code == ResponseCode.TOPIC_NOT_EXIST:  # it is registered after a moment
            await asyncio.sleep(0.01)
            answer = await ways.talk.client.request(broker.namesrv, command)
        queues = TopicRouteData.decode(answer.content).queue_datas
        assert EmbeddedBroker(broker).route("T").queue_datas == queues
        assert queues[0].perm == permission
        assert (await ways.talk.send("T", e=0)).code == 0, "a producer with an older route"


@pytest.mark.parametrize("perm", [0, 2, 4, 6])
@pytest.mark.parametrize(("reads", "writes"), [(2, 3), (3, 2), (0, 2), (2, 0)])
@pytest.mark.parametrize("ids", [[0, 1], [1]])
async def test_the_open_queues_of_a_route(
    perm: int, reads: int, writes: int, ids: list[int]
) -> None:
    """Without a master, queues are only read, and not by pops, so not by clients of gRPC."""
    data = QueueData("b", reads, writes, perm)
    route = TopicRouteData([data], [BrokerData("b", "c", {number: "a:1" for number in ids})])
    cases = ((Permission.READ, reads), (Permission.WRITE, writes))
    for permission, count in cases:
        allowed = count if perm & permission else 0
        wanted = allowed if permission is Permission.READ or 0 in ids else 0
        assert len(queues_of("T", route, permission)) == wanted
        by_pops = sum(found for _, found in open_queues(route, permission))
        assert by_pops == (allowed if 0 in ids else 0)
        if perm:
            shown = [kind for _, kind in numbered_queues(data)]
            own = GrpcPermission.READ if permission is Permission.READ else GrpcPermission.WRITE
            assert shown.count(own) + shown.count(GrpcPermission.READ_WRITE) == allowed

        class Asked:
            async def route(self, topic: str) -> TopicRouteData:
                return route

        admin: Any = Asked()
        cause = await _topic_cause(admin, "T", ["b"], permission)
        assert ("no queue of the topic T may be" in cause) is (allowed == 0)
        assert ("start their masters" in cause) is (allowed > 0 and not wanted)
