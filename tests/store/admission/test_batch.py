"""Puts of batches: the stored records, or the status and text of the refusal."""

from itertools import product

import pytest
from tests.helpers import bodies, put_all
from tests.store.conftest import OpenStore

from firetrail import Batch, Message, PutStatus, Store
from firetrail.errors import IllegalMessageError, PropertiesTooLongError
from firetrail.format import layout
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.properties import encode_properties
from firetrail.format.values.hosts import Host

pytestmark = pytest.mark.stepped_threads

V4 = Host("10.1.2.3", 50001)
V6 = Host("2001:db8::1", 50002)


def test_a_batch_is_stored_in_one_piece(store: Store) -> None:
    put_all(store, [b"before"])
    messages = [Message("T", b"%d" % n, tags="A", keys=[f"k{n}"], flag=n) for n in range(5)]
    result = store.put_batch(messages)
    assert (result.queue_offset, result.messages) == (1, 5)
    assert store.put(Message("T", b"after")).queue_offset == 6
    assert store.wait_dispatched()
    assert bodies(store) == [b"before", b"0", b"1", b"2", b"3", b"4", b"after"]
    records = list(store.read("T", offset=1))[:5]
    assert [record.flag for record in records] == [0, 1, 2, 3, 4]
    assert records[0].physical_offset == result.physical_offset
    assert sum(record.size for record in records) == result.size
    assert {record.store_time for record in records} == {result.store_time}
    assert [m.queue_offset for m in store.query("T", "k3")] == [4]


@pytest.mark.parametrize("shared", [b"CLUSTER\x01c", b"CLUSTER\x01c\x02"])
def test_shared_properties_go_to_each_message(store: Store, shared: bytes) -> None:
    body = encode_batch(
        [
            BatchItem(1, b"a", b"TAGS\x01A"),
            BatchItem(2, b"b", b""),
            BatchItem(3, b"c", b"K\x01v\x02"),
        ]
    )
    store.put_batch(Batch("T", body, shared_properties=shared))
    assert store.wait_dispatched()
    assert [record.properties for record in store.read("T")] == [
        {"TAGS": "A", "CLUSTER": "c"},
        {"CLUSTER": "c"},
        {"K": "v", "CLUSTER": "c"},
    ]


def test_a_shared_property_counts_more_than_that_of_the_message(store: Store) -> None:
    """The record has both, the shared one last: all readers, as in Java, use the last one."""
    own = encode_properties({"TAGS": "A", "KEYS": "old", "K": "v"})
    shared = encode_properties({"TAGS": "B", "KEYS": "new"})
    batch = Batch("T", encode_batch([BatchItem(0, b"x", own)]), shared_properties=shared)
    assert store.try_put_batch(batch).ok
    assert store.wait_dispatched()
    (record,) = store.read("T", tags=["B"])
    assert record.raw_properties == own + shared
    assert record.properties == {"TAGS": "B", "KEYS": "new", "K": "v"}
    assert not list(store.read("T", tags=["A"]))
    assert [len(list(store.query("T", key))) for key in ("old", "new")] == [0, 1]


@pytest.mark.parametrize(("born", "at"), list(product((V4, V6), (V4, V6))))
def test_a_batch_keeps_its_hosts(open_store: OpenStore, born: Host, at: Host) -> None:
    store = open_store(store_host=at)
    store.put_batch([Message("T", b"a", born_host=born), Message("T", b"b", born_host=born)])
    assert store.wait_dispatched()
    for record in store.read("T"):
        assert (record.born_host, record.store_host) == (born, at)


def test_a_batch_moves_to_the_next_file_as_a_whole(store: Store) -> None:
    put_all(store, [b"x" * 3000])
    result = store.put_batch([Message("T", b"%d" % n * 100) for n in range(8)])
    assert result.physical_offset == 4096
    assert store.wait_dispatched()
    assert len(bodies(store)) == 9


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "batch"),
        ([Message("A", b""), Message("B", b"")], "topic"),
        ([Message("A", b""), Message("A", b"", queue_id=1)], "queue_id"),
        ([Message("A", b""), Message("A", b"", born_host=V4)], "born_host"),
        ([Message("A", b""), Message("A", b"", delay_level=1)], "batch"),
        ([Message("A", b"", sys_flag=layout.TRANSACTION_PREPARED)], "sys_flag"),
        ([Message("%RETRY%g", b"")], "topic"),
        ([Message("A", b"", keys=["k"], properties={"KEYS": "l"})], "KEYS"),
        ([Message("A", b"", tags="t", properties={"TAGS": "t"})], "TAGS"),
        ([Message("A", b"x" * 3000), Message("A", b"x" * 3000)], "batch"),
    ],
)
def test_invalid_batches_are_refused(store: Store, messages: list[Message], field: str) -> None:
    with pytest.raises(IllegalMessageError) as caught:
        store.put_batch(messages)
    assert caught.value.field == field
    assert store.log_range == (0, 0)


@pytest.mark.parametrize(
    "body", [b"", b"xyz", bytes(20), encode_batch([BatchItem(0, b"a", b"")])[:-1]]
)
def test_a_body_that_is_not_a_batch_is_refused(store: Store, body: bytes) -> None:
    result = store.try_put_batch(Batch("T", body))
    assert (result.status, result.field) == (PutStatus.MESSAGE_ILLEGAL, "batch")
    assert store.log_range == (0, 0)


def test_a_batch_with_properties_that_are_too_long_is_refused(store: Store) -> None:
    messages = [Message("T", b""), Message("T", b"", properties={"a": "x" * 40_000})]
    what = r"^properties of message 1: 40003 bytes, at most 32767$"
    with pytest.raises(PropertiesTooLongError, match=what):
        Batch.of(messages)
    with pytest.raises(PropertiesTooLongError, match=what):
        store.put_batch(messages)
    assert store.log_range == (0, 0)


def test_a_batch_with_a_flag_that_is_too_large_is_refused() -> None:
    what = r"^flag of message 0: 2147483648 is not a signed number of 32 bits$"
    with pytest.raises(IllegalMessageError, match=what):
        Batch.of([Message("T", b"", flag=2**31)])
