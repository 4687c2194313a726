"""Messages that are encoded without objects of protobuf, compared with those that have them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.test_delivered import record

from firetrail.format.hosts import Host
from firetrail.format.layout import COMPRESSED
from firetrail.format.properties import encode_properties
from firetrail.format.record import Record
from firetrail.proxy.delivered import delivered
from firetrail.proxy.encoded_message import encoded_delivery, encoded_topic
from firetrail.proxy.schema.messages import Message, ReceiveMessageResponse

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=200)
times = st.integers(0, 1 << 50)


def encoded(stored: Record, topic: str, attempt: int, receipt: str) -> Message | None:
    found = encoded_delivery(stored, stored.properties, encoded_topic(topic), attempt, receipt)
    return None if found is None else ReceiveMessageResponse.FromString(found).message


@given(
    properties=st.dictionaries(
        st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "__BORNHOST", "CLUSTER", "a"]) | texts, texts
    ),
    body=st.binary(max_size=300),
    topic=st.sampled_from(["T", "ns%T", "%DLQ%g", "T" * 127]),
    changes=st.fixed_dictionaries(
        {
            "queue_id": st.integers(0, 300),
            "queue_offset": st.integers(0, 1 << 40),
            "born_time": times,
            "store_time": times,
            "born_host": st.sampled_from([Host("127.0.0.1", 1), Host("::1", 65535)]),
        }
    ),
    attempt=st.integers(1, 300),
    receipt=texts,
)
def test_both_ways_mean_the_same(
    properties: dict[str, str],
    body: bytes,
    topic: str,
    changes: dict[str, Any],
    attempt: int,
    receipt: str,
) -> None:
    stored = record(body)._replace(raw_properties=encode_properties(properties), **changes)
    expected = delivered(stored, properties, topic, attempt=attempt, receipt=receipt)
    found = encoded(stored, topic, attempt, receipt)
    assert found is None or found == expected
    if set(properties) <= {"TAGS", "KEYS", "UNIQ_KEY", "__BORNHOST", "CLUSTER", "a"}:
        assert found is not None


@pytest.mark.parametrize(
    "rare",
    [
        record(sys_flag=COMPRESSED),
        record(__SHARDINGKEY="g"),
        record(TIMER_DELIVER_MS="1"),
        record(TRAN_MSG="true"),
        record(TRACE_CONTEXT="x"),
        record()._replace(queue_id=-1),
        record()._replace(born_time=-1),
    ],
)
def test_messages_with_rare_fields_are_left_to_objects(rare: Record) -> None:
    assert encoded(rare, "T", 1, "r") is None
