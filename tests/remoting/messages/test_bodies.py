"""Encoding and decoding of JSON bodies, as Java brokers and unusual clients write them."""

import dataclasses
import json
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from firetrail.errors import ProtocolError
from firetrail.format.files import config_json
from firetrail.remoting.messages import bodies
from firetrail.remoting.messages.admin.admin_bodies import (
    ConsumerStatus,
    ConsumeStats,
    OffsetWrapper,
    ResetOffsets,
    TopicOffset,
    TopicStats,
)
from firetrail.remoting.messages.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerIdList,
    ConsumerOffsets,
    ConsumeType,
    HeartbeatData,
    LockBody,
    LockedBody,
    MessageModel,
    MessageQueue,
    ProducerData,
    QueueData,
    SubscriptionData,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from firetrail.remoting.messages.typed_body import DIALECT_MAX, Body, ServerBody

QUEUE = MessageQueue("T1", "broker-a", 0)
BROKER = BrokerData("broker-a", "DefaultCluster", {0: "127.0.0.1:10911"})
SUBSCRIPTION = SubscriptionData("T1", "TagA", "TAG", 1600000000000, ["TagA"], [2598919])
QUEUE_TEXT = '{"brokerName":"broker-a","queueId":0,"topic":"T1"}'
BROKER_TEXT = (
    '{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}'
)

# As RocketMQ 4.9 writes them.
SAMPLES: list[tuple[Body, str]] = [
    (
        HeartbeatData(
            "10.0.0.1@1234",
            [ProducerData("PG")],
            [ConsumerData("G", subscription_data_set=[SUBSCRIPTION])],
        ),
        '{"clientID":"10.0.0.1@1234","consumerDataSet":[{"consumeFromWhere":'
        '"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"G",'
        '"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":'
        '[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1600000000000,"tagsSet":'
        '["TagA"],"topic":"T1"}],"unitMode":false}],"producerDataSet":[{"groupName":"PG"}]}',
    ),
    (
        TopicRouteData([QueueData("broker-a", 4, 4, 6)], [BROKER]),
        f'{{"brokerDatas":[{BROKER_TEXT}],"filterServerTable":{{}},"queueDatas":[{{"brokerName":'
        '"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        ClusterInfo({"broker-a": BROKER}, {"DefaultCluster": ["broker-a"]}),
        f'{{"brokerAddrTable":{{"broker-a":{BROKER_TEXT}}},'
        '"clusterAddrTable":{"DefaultCluster":["broker-a"]}}',
    ),
    (ConsumerIdList(["a@1", "b@2"]), '{"consumerIdList":["a@1","b@2"]}'),
    (
        LockBody("G", "a@1", [QUEUE]),
        f'{{"clientId":"a@1","consumerGroup":"G","mqSet":[{QUEUE_TEXT}]}}',
    ),
    (LockedBody([QUEUE]), f'{{"lockOKMQSet":[{QUEUE_TEXT}]}}'),
    (ConsumerOffsets({"T1@G": {0: 5, 1: 7}}), '{"offsetTable":{"T1@G":{0:5,1:7}}}'),
    (ResetOffsets({QUEUE: 3}), f'{{"offsetTable":{{{QUEUE_TEXT}:3}}}}'),
    (
        TopicStats({QUEUE: TopicOffset(0, 3, 1600)}),
        f'{{"offsetTable":{{{QUEUE_TEXT}:'
        '{"lastUpdateTimestamp":1600,"maxOffset":3,"minOffset":0}}}',
    ),
    (
        ConsumeStats({QUEUE: OffsetWrapper(3, 2, 1600)}, 0.5),
        f'{{"consumeTps":0.5,"offsetTable":{{{QUEUE_TEXT}:'
        '{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":1600}}}',
    ),
    (
        ConsumerStatus(consumer_table={"a@1": {QUEUE: 4}}),
        f'{{"consumerTable":{{"a@1":{{{QUEUE_TEXT}:4}}}}}}',
    ),
]


@pytest.mark.parametrize(("body", "text"), SAMPLES, ids=lambda s: type(s).__name__)
def test_bodies_are_encoded_as_by_java(body: Body, text: str) -> None:
    assert body.encode() == text.encode()
    assert type(body).decode(text.encode()) == body


def test_standard_json_has_quoted_keys() -> None:
    route = TopicRouteData([QueueData("broker-a", 4, 4, 6)], [BROKER])
    plain = route.encode(standard=True)
    assert json.loads(plain)["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    assert b" " not in plain
    assert TopicRouteData.decode(plain) == route


JSON_BODIES = [
    kind
    for kind in (*Body.__subclasses__(), *ServerBody.__subclasses__())
    if "decode" not in vars(kind) and kind is not ServerBody
]
"""All bodies but those that decode another format."""


@pytest.mark.parametrize("kind", JSON_BODIES, ids=lambda kind: kind.__name__)
def test_every_body_decodes_its_own_encoding(kind: type[Body]) -> None:
    """Test with all fields set, and with only the required ones."""
    for full in (True, False):
        body = sample(kind, full)
        assert kind.decode(body.encode()) == body
        assert kind.from_json(config_json.loads(config_json.compact(body.to_json()))) == body


def sample(kind: type[Body], full: bool) -> Body:
    hints = get_type_hints(kind)
    values = {
        f.name: value_of(hints[f.name])
        for f in dataclasses.fields(kind)
        if full or (f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING)
    }
    return kind(**values)


def value_of(hint: Any) -> Any:
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin is list:
        return [value_of(arguments[0])]
    if origin is dict:
        return {value_of(arguments[0]): value_of(arguments[1])}
    if arguments:
        return value_of(arguments[0])
    if hint is Any:
        return {"any": ["thing"]}
    if issubclass(hint, Body):
        return sample(hint, True)
    if issubclass(hint, ConsumeType | MessageModel | ConsumeFromWhere | bodies.RequestMode):
        return list(hint)[-1]
    return {int: 7, float: 2.5, bool: True, str: 'a "text" \u2028'}[hint]


def test_bodies_are_written_as_the_files_of_a_broker() -> None:
    topics = TopicConfigTable({"T1": TopicConfig("T1", 4, 4)})
    text = config_json.dumps(topics.to_json())
    assert text.startswith('{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"timestamp":0\n\t},\n')
    assert TopicConfigTable.from_json(config_json.loads(text)) == topics


def test_fields_of_newer_brokers_are_kept() -> None:
    text = (
        b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"forbiddenTable":{},'
        b'"subscriptionGroupTable":{"G":{"attributes":{},"brokerId":0,"consumeBroadcastEnable":'
        b'true,"consumeEnable":true,"consumeFromMinEnable":true,"consumeMessageOrderly":false,'
        b'"consumeTimeoutMinute":15,"groupName":"G","groupRetryPolicy":{"type":"CUSTOMIZED"},'
        b'"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,'
        b'"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}'
    )
    assert SubscriptionGroupTable.decode(text).encode() == text


class TestOddClients:
    def test_a_heartbeat_of_the_cpp_client_is_decoded(self) -> None:
        """Ordinals for names, text for numbers, members left out, a line feed at the end."""
        body = HeartbeatData.decode(
            b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
            b'"groupName":"G","messageModel":1,"subscriptionDataSet":[{"subString":"*",'
            b'"subVersion":"1530000000000","topic":"T"}]}]}\n'
        )
        (consumer,) = body.consumer_data_set
        assert consumer == ConsumerData(
            "G",
            ConsumeType.PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.LAST_OFFSET,
            [SubscriptionData("T", sub_version=1530000000000)],
        )
        assert body.producer_data_set == []

    def test_null_is_treated_as_missing(self) -> None:
        assert ConsumerIdList.decode(b'{"consumerIdList":null}') == ConsumerIdList()

    def test_unknown_members_are_ignored(self) -> None:
        assert ConsumerIdList.decode(b'{"newer":{"a":[1]},"consumerIdList":["x"]}') == (
            ConsumerIdList(["x"])
        )

    def test_quoted_objects_are_accepted_as_keys(self) -> None:
        key = json.dumps(QUEUE_TEXT)
        assert ResetOffsets.decode(f'{{"offsetTable":{{{key}:3}}}}'.encode()) == (
            ResetOffsets({QUEUE: 3})
        )


class TestInvalidBodies:
    @pytest.mark.parametrize(
        ("kind", "raw", "message"),
        [
            (HeartbeatData, b"", "HeartbeatData: config JSON at offset 0"),
            (HeartbeatData, b"\xff", "is not UTF-8"),
            (HeartbeatData, b"[]", "HeartbeatData must be an object"),
            (HeartbeatData, b"{}", "HeartbeatData has no clientID"),
            (HeartbeatData, b'{"clientID":5}', r"HeartbeatData\.clientID must be text, not 5"),
            (
                HeartbeatData,
                b'{"clientID":"","consumerDataSet":[{"groupName":"","messageModel":2}]}',
                r"consumerDataSet\[0\]\.messageModel must be one of BROADCASTING, CLUSTERING",
            ),
            (ConsumerIdList, b'{"consumerIdList":{}}', "must be a list"),
            (ConsumerOffsets, b'{"offsetTable":{"a":{"b":1}}}', "a key of .* must be a 64-bit"),
            (ConsumerOffsets, b'{"offsetTable":{"a":{0:1.5}}}', "must be a 64-bit number"),
            (ConsumerOffsets, b'{"offsetTable":{"a":{0:true}}}', "must be a 64-bit number"),
            (ConsumerOffsets, b'{"offsetTable":{"a":{"0":' + b"9" * 30 + b"}}}", "64-bit"),
            (ResetOffsets, b'{"offsetTable":{0:1}}', "must be an object"),
            (ResetOffsets, b'{"offsetTable":{{"topic":"T"}:1}}', "has no brokerName"),
            (ConsumeStats, b'{"consumeTps":"x"}', "must be a number"),
            (LockBody, b'{"clientId":"","consumerGroup":"","onlyThisBroker":"x"}', "true or false"),
            (ConsumerIdList, b'{"a":' * 50_000, "nested deeper"),
        ],
    )
    def test_an_invalid_body_is_rejected_with_its_place(
        self, kind: type[Body], raw: bytes, message: str
    ) -> None:
        with pytest.raises(ProtocolError, match=message):
            kind.decode(raw)


class TestDialect:
    """A parser in Python reads fastjson's dialect, some twenty times slower than JSON."""

    def test_a_large_request_has_to_be_standard_json(self, monkeypatch: pytest.MonkeyPatch) -> None:
        parsed: list[bytes] = []
        monkeypatch.setattr(config_json, "loads", parsed.append)
        large = b"[" + b"[]," * DIALECT_MAX
        with pytest.raises(ProtocolError, match="at most 65536 may be in fastjson's dialect"):
            HeartbeatData.decode(large)
        with pytest.raises(ProtocolError, match="nested deeper"):
            HeartbeatData.decode(b"[" * (DIALECT_MAX + 1))
        assert parsed == []

    def test_a_small_request_may_be_in_the_dialect(self) -> None:
        assert HeartbeatData.decode(b"{clientID:'c1',}").client_id == "c1"

    def test_a_large_table_of_a_server_may_be_in_the_dialect(self) -> None:
        offsets = ConsumerOffsets({f"T{n}@G": {0: n} for n in range(5000)})
        assert len(raw := offsets.encode()) > DIALECT_MAX
        assert ConsumerOffsets.decode(raw) == offsets
