"""Names of topics and groups: what is accepted, and the code of each refusal."""

import pytest

from firetrail.errors import ProxyError
from firetrail.proxy.calls.resource_names import group_name, topic_name
from firetrail.proxy.calls.status_codes import Code
from firetrail.proxy.schema.messages import Resource

RESERVED = {"DefaultCluster", "broker-a"}


@pytest.mark.parametrize(
    "name", ["t", "x" * 127, "%RETRY%group", "%DLQ%group", "NS%orders", "a|b_c-D9", "rmq_sysx"]
)
def test_topics_of_clients(name: str) -> None:
    assert topic_name(Resource(name=name), RESERVED) == name


def test_the_namespace_does_not_count() -> None:
    assert topic_name(Resource(resource_namespace="a b", name="orders")) == "orders"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the name of the topic is blank"),
        (" \t", "the name of the topic is blank"),
        ("x" * 128, "1 to 127 letters"),
        ("a b", "'a b': 1 to 127 letters"),
        ("a.b", "letters, digits"),
        ("Zürich", "letters, digits"),
        ("a\n", "letters, digits"),
        *(
            (name, f"topic {name} is reserved")
            for name in (
                *("rmq_sys_", "RMQ_SYS_X", "rmq_sys_wheel_timer", "TBW102", "SCHEDULE_TOPIC_XXXX"),
                *("BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
                *("RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC"),
                *("OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC", *sorted(RESERVED)),
            )
        ),
    ],
)
def test_illegal_topics(name: str, reason: str) -> None:
    with pytest.raises(ProxyError, match=reason) as caught:
        topic_name(Resource(name=name), RESERVED)
    assert caught.value.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["g", "x" * 120, "%NS|g", "CID_RMQ"])
def test_groups_of_clients(name: str) -> None:
    assert group_name(Resource(name=name)) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the name of the consumer group is blank"),
        ("  ", "the name of the consumer group is blank"),
        ("x" * 121, "1 to 120 letters"),
        ("a.b", "'a.b': 1 to 120 letters"),
        ("CID_RMQ_SYS_", "is reserved for the system"),
        ("CID_RMQ_SYS_TRANS", "is reserved for the system"),
    ],
)
def test_illegal_groups(name: str, reason: str) -> None:
    with pytest.raises(ProxyError, match=reason) as caught:
        group_name(Resource(name=name))
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP
