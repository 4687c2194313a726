"""Messages that are encoded without objects of protobuf, compared with those that have them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.conversion.test_delivered_messages import record

from firetrail.format.layout import COMPRESSED
from firetrail.format.properties import encode_properties
from firetrail.format.record import Record
from firetrail.format.values.hosts import Host
from firetrail.format.values.integers import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
from firetrail.proxy.conversion.delivered_messages import attempt_after, delivered
from firetrail.proxy.conversion.encoded_message import encoded_delivery, encoded_topic
from firetrail.proxy.schema.messages import Message, ReceiveMessageResponse

COMMON = ["TAGS", "KEYS", "UNIQ_KEY", "__BORNHOST", "CLUSTER", "a"]
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200)
int32 = st.integers(INT32_MIN, INT32_MAX)
int64 = st.integers(INT64_MIN, INT64_MAX)


def encoded(stored: Record, topic: str, attempt: int, receipt: str) -> Message | None:
    found = encoded_delivery(stored, stored.properties, encoded_topic(topic), attempt, receipt)
    return None if found is None else ReceiveMessageResponse.FromString(found).message


@given(
    properties=st.dictionaries(st.sampled_from(COMMON) | texts, texts),
    body=st.binary(max_size=300),
    topic=st.sampled_from(["T", "ns%T", "%DLQ%g", "T" * 127]),
    changes=st.fixed_dictionaries(
        {
            "queue_id": st.integers(0, 300) | int32,
            "queue_offset": st.integers(0, 1 << 40) | int64,
            "born_time": st.integers(0, 1 << 50) | int64,
            "store_time": st.integers(0, 1 << 50) | int64,
            "reconsume_times": st.integers(0, 300) | int32,
            "born_host": st.sampled_from([Host("127.0.0.1", 1), Host("::1", 65535)]),
        }
    ),
    receipt=texts,
)
def test_both_ways_mean_the_same(
    properties: dict[str, str], body: bytes, topic: str, changes: dict[str, Any], receipt: str
) -> None:
    stored = record(body)._replace(raw_properties=encode_properties(properties), **changes)
    attempt = attempt_after(stored.reconsume_times)
    expected = delivered(stored, properties, topic, attempt=attempt, receipt=receipt)
    found = encoded(stored, topic, attempt, receipt)
    assert found is None or found == expected
    assert delivered(stored, properties, topic, receipt=receipt) == expected
    if set(properties) <= set(COMMON):
        assert found is not None


@pytest.mark.parametrize(
    "rare",
    [
        record(sys_flag=COMPRESSED),
        record(__SHARDINGKEY="g"),
        record(TIMER_DELIVER_MS="1"),
        record(TRAN_MSG="true"),
        record(TRACE_CONTEXT="x"),
    ],
)
def test_messages_with_rare_fields_are_left_to_objects(rare: Record) -> None:
    assert encoded(rare, "T", 1, "r") is None


@pytest.mark.parametrize(
    ("earlier", "attempt"),
    [(0, 1), (5, 6), (-1, 1), (INT32_MIN, 1), (INT32_MAX - 1, INT32_MAX), (INT32_MAX, INT32_MAX)],
)
def test_attempts_are_numbers_that_clients_can_represent(earlier: int, attempt: int) -> None:
    assert attempt_after(earlier) == attempt
