"""Puts of single messages: the stored record, or the status and text of the refusal."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import START_MS, Machine, bodies, put_all
from tests.store.conftest import OpenStore

from firetrail import Batch, Message, PutStatus, Record, Store
from firetrail.errors import IllegalMessageError, PropertiesTooLongError
from firetrail.format import layout
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.values.hosts import Host
from firetrail.format.values.ids import decode_message_id

pytestmark = pytest.mark.stepped_threads

V4 = Host("10.1.2.3", 50001)
V6 = Host("2001:db8::1", 50002)


def stored(store: Store, message: Message) -> Record:
    record = store.at(store.put(message).physical_offset)
    assert record is not None
    return record


class TestFields:
    def test_a_plain_message_is_stored_with_its_defaults(self, store: Store) -> None:
        result = store.put(Message("T", b"body"))
        assert (result.status, result.ok) == (PutStatus.PUT_OK, True)
        assert (result.queue_id, result.queue_offset, result.physical_offset) == (0, 0, 0)
        assert (result.store_time, result.messages) == (START_MS, 1)
        record = store.at(0)
        assert record is not None
        assert record.size == result.size == layout.RECORD_SIZE_MIN + 4 + 1
        assert (record.topic, bytes(record.body), record.properties) == ("T", b"body", {})
        assert record.magic == layout.MAGIC_V1
        assert record.crc_ok
        assert (record.born_time, record.store_time) == (START_MS, START_MS)
        assert record.born_host == record.store_host == store.config.store_host

    def test_every_field_reaches_the_log(self, store: Store) -> None:
        record = stored(
            store,
            Message(
                "T",
                b"",
                tags="paid",
                keys=["o-1", "o-2"],
                properties={"colour": "grün"},
                queue_id=3,
                flag=-7,
                sys_flag=layout.COMPRESSED,
                born_time=1234,
                born_host=V4,
                reconsume_times=2,
                prepared_offset=99,
            ),
        )
        assert (record.tags, record.keys) == ("paid", ("o-1", "o-2"))
        assert record.properties == {"KEYS": "o-1 o-2", "TAGS": "paid", "colour": "grün"}
        assert (record.queue_id, record.flag, record.sys_flag) == (3, -7, layout.COMPRESSED)
        assert (record.born_time, record.born_host) == (1234, V4)
        assert (record.reconsume_times, record.prepared_offset) == (2, 99)
        assert (bytes(record.body), record.body_crc) == (b"", 0)

    def test_properties_that_a_client_encoded_are_kept_as_they_are(self, store: Store) -> None:
        raw = b"TAGS\x01A\x02KEYS\x01k"
        record = stored(store, Message("T", b"x", tags="ignored", raw_properties=raw))
        assert record.raw_properties == raw
        assert store.wait_dispatched()
        assert [m.queue_offset for m in store.query("T", "k")] == [0]

    @pytest.mark.parametrize("body", [bytearray(b"abc"), memoryview(b"abc")])
    def test_bodies_may_be_any_bytes_like_object(self, store: Store, body: Any) -> None:
        assert bytes(stored(store, Message("T", body)).body) == b"abc"

    @pytest.mark.parametrize(("born", "at"), list(product((V4, V6), (V4, V6))))
    def test_ipv4_and_ipv6_hosts_are_kept(
        self, open_store: OpenStore, born: Host, at: Host
    ) -> None:
        store = open_store(store_host=at)
        result = store.put(Message("T", b"x", born_host=born))
        record = store.at(result.physical_offset)
        assert record is not None
        assert (record.born_host, record.store_host) == (born, at)
        assert bool(record.sys_flag & layout.BORN_HOST_V6) is (born is V6)
        assert bool(record.sys_flag & layout.STORE_HOST_V6) is (at is V6)
        assert result.message_id is not None
        assert decode_message_id(result.message_id).host == at
        found = store.by_id(result.message_id)
        assert found is not None and found.physical_offset == result.physical_offset

    def test_host_flags_come_from_the_hosts(self, store: Store) -> None:
        flags = layout.BORN_HOST_V6 | layout.STORE_HOST_V6
        record = stored(store, Message("T", b"x", sys_flag=flags | layout.COMPRESSED))
        assert record.sys_flag == layout.COMPRESSED

    def test_a_retry_topic_may_be_longer_and_is_a_v2_record(self, store: Store) -> None:
        topic = "%RETRY%" + "g" * 200
        record = stored(store, Message(topic, b"x"))
        assert (record.magic, record.topic) == (layout.MAGIC_V2, topic)

    def test_a_refused_message_has_no_id(self, store: Store) -> None:
        assert store.try_put(Message("", b"x")).message_id is None


class TestQueueOffsets:
    def test_are_counted_for_each_topic_and_queue(self, store: Store) -> None:
        offsets = [
            store.put(Message(topic, b"x", queue_id=queue)).queue_offset
            for topic, queue in [("A", 0), ("A", 0), ("A", 1), ("B", 0), ("A", 0), ("A", 1)]
        ]
        assert offsets == [0, 1, 0, 0, 2, 1]

    @pytest.mark.parametrize("kind", [layout.TRANSACTION_PREPARED, layout.TRANSACTION_ROLLBACK])
    def test_prepared_and_rolled_back_have_no_queue_offset(self, store: Store, kind: int) -> None:
        put_all(store, [b"before"])
        result = store.put(Message("T", b"half", sys_flag=kind, keys=["k"]))
        assert result.queue_offset == 0
        assert store.put(Message("T", b"after")).queue_offset == 1
        assert store.wait_dispatched()
        assert bodies(store) == [b"before", b"after"]
        # A prepared message is found by its key, a rolled back one is not.
        found = [bytes(message.body) for message in store.query("T", "k")]
        assert found == ([b"half"] if kind == layout.TRANSACTION_PREPARED else [])

    def test_a_committed_message_has_one(self, store: Store) -> None:
        message = Message("T", b"done", sys_flag=layout.TRANSACTION_COMMIT, prepared_offset=7)
        put_all(store, [b"before"])
        assert store.put(message).queue_offset == 1
        assert store.wait_dispatched()
        assert bodies(store) == [b"before", b"done"]

    def test_go_on_after_a_refused_put(self, open_store: OpenStore) -> None:
        store = open_store(max_message_size=100)
        put_all(store, [b"a"])
        assert not store.try_put(Message("T", b"x" * 101)).ok
        put_all(store, [b"b"])
        assert bodies(store) == [b"a", b"b"]


class TestDelay:
    @pytest.mark.parametrize(
        ("level", "waits"),
        [(1, 1_000), (3, 10_000), (18, 7_200_000), (19, 7_200_000), (10**6, 7_200_000)],
    )
    def test_waits_in_the_schedule(self, store: Store, level: int, waits: int) -> None:
        message = Message("T", b"later", tags="A", keys=["k"], queue_id=5, delay_level=level)
        result = store.put(message)
        kept = min(level, 18)
        assert result.queue_id == kept - 1
        assert store.wait_dispatched()
        assert store.topics() == [SCHEDULE_TOPIC, "T"]
        (record,) = store.read(SCHEDULE_TOPIC, kept - 1)
        assert record.properties == {
            "KEYS": "k",
            "TAGS": "A",
            "DELAY": str(kept),
            "REAL_TOPIC": "T",
            "REAL_QID": "5",
        }
        assert store.max_offset("T", 5) == 0
        unit = store._engine.queues.open(SCHEDULE_TOPIC, kept - 1).unit(0)
        assert unit is not None and unit.tags_code == START_MS + waits

    @pytest.mark.parametrize("raw", [b"DELAY\x012", b"DELAY\x012\x02", b"A\x01b\x02DELAY\x012"])
    def test_is_found_in_encoded_properties(self, store: Store, raw: bytes) -> None:
        assert store.put(Message("T", b"x", raw_properties=raw)).queue_id == 1
        assert store.wait_dispatched()
        (record,) = store.read(SCHEDULE_TOPIC, 1)
        assert record.properties["REAL_TOPIC"] == "T"

    @pytest.mark.parametrize(
        "raw", [b"DELAY\x010\x02", b"DELAY\x01x\x02", b"XDELAY\x012\x02", b"A\x01DELAY\x02"]
    )
    def test_text_that_looks_like_a_delay_is_none(self, store: Store, raw: bytes) -> None:
        store.put(Message("T", b"x", raw_properties=raw))
        assert store.wait_dispatched()
        assert store.topics() == ["T"]

    @pytest.mark.parametrize(
        ("kind", "topic"),
        [
            (layout.TRANSACTION_COMMIT, SCHEDULE_TOPIC),
            (layout.TRANSACTION_PREPARED, "T"),
            (layout.TRANSACTION_ROLLBACK, "T"),
        ],
    )
    def test_of_transactions_only_the_committed(self, store: Store, kind: int, topic: str) -> None:
        assert stored(store, Message("T", b"x", delay_level=1, sys_flag=kind)).topic == topic

    def test_a_level_beyond_the_last_is_clamped(self, open_store: OpenStore) -> None:
        from firetrail.format.values.delay import DelayLevels

        store = open_store(delay_levels=DelayLevels.parse("2s 1m"))
        assert store.put(Message("T", b"x", delay_level=9)).queue_id == 1


class TestPropertyCrc:
    def test_every_record_is_sealed(self, open_store: OpenStore, root: Path) -> None:
        store = open_store(property_crc=True)
        store.put(Message("T", b"x", tags="A"))
        store.put(Message("T", b"", raw_properties=b"A\x01b"))
        store.put(Message("T", b"late", delay_level=1))
        store.put_batch([Message("T", b"1"), Message("T", b"2", tags="B")])
        assert store.wait_dispatched()
        log = (root / "commitlog" / ("0" * 20)).read_bytes()
        end = store.log_range[1]
        from firetrail.format.columns import Check, Columns
        from firetrail.format.kernels.scan import scan

        rows, position, _ = scan(memoryview(log), 0, end, 0, Columns(9).table, Check.RECORD)
        assert (rows, position) == (5, end)
        assert log[:end].count(b"__CRC32#\x01") == 5

    def test_a_flipped_bit_anywhere_is_found_at_recovery(self, open_store: OpenStore) -> None:
        from firetrail.format.columns import Check, Columns
        from firetrail.format.kernels.scan import scan

        store = open_store(property_crc=True)
        size = store.put(Message("T", b"body", tags="A")).size
        record = bytes(store.get("T").buffers[0]) if store.wait_dispatched() else b""
        for bit in range(8 * size):
            damaged = bytearray(record)
            damaged[bit // 8] ^= 1 << bit % 8
            rows, _, _ = scan(memoryview(damaged), 0, size, 0, Columns(1).table, Check.RECORD)
            # If the property no longer looks like a checksum, only the body's checksum is left.
            assert not rows or bit // 8 >= size - 20 or bit // 8 == size - 21


BAD_MESSAGES: list[tuple[Message, str, str]] = [
    (Message("", b""), "topic", "is empty"),
    (Message("a/b", b""), "topic", "has a character other than"),
    (Message("../../etc", b""), "topic", "has a character other than"),
    (Message("..", b""), "topic", "has a character other than"),
    (Message("a\\b", b""), "topic", "has a character other than"),
    (Message("a\0b", b""), "topic", "has a character other than"),
    (Message("a b", b""), "topic", "has a character other than"),
    (Message("größe", b""), "topic", "has a character other than"),
    (Message("t" * 128, b""), "topic", "128 bytes, the limit is 127"),
    (Message("%RETRY%" + "t" * 249, b""), "topic", "256 bytes, the limit is 255"),
    (Message("T", b"x" * 3985), "body", "3985 bytes, at most"),
    (Message("T", b"", keys=["a b"]), "keys", "a key must not contain a space"),
    (Message("T", b"", keys=["a", "b c"]), "keys", "a key must not contain a space"),
    (Message("T", b"", tags="a\x01b"), "property 'TAGS'", "separates properties"),
    (Message("T", b"", tags="half \ud800"), "property 'TAGS'", "surrogate pair"),
    (Message("T", b"", keys=["a\x02b"]), "property 'KEYS'", "separates properties"),
    (Message("T", b"", properties={"a": "b\x02c"}), "property 'a'", "separates properties"),
    (Message("T", b"", properties={"a\x01": "b"}), "property 'a\\x01'", "separates"),
    (Message("T", b"", properties={"": "b"}), "property ''", "empty"),
    (Message("T", b"", properties={"a": ""}), "property 'a'", "empty"),
    (Message("T", b"", flag=2**31), "flag", "2147483648 is not a signed number of 32 bits"),
    (Message("T", b"", sys_flag=2**31), "sys_flag", "is not a signed number of 32 bits"),
    (Message("T", b"", reconsume_times=-(2**31) - 1), "reconsume_times", "32 bits"),
    (Message("T", b"", queue_id=-1), "queue_id", "-1 is not in 0..2147483647"),
    (Message("T", b"", queue_id=2**31), "queue_id", "2147483648 is not in 0..2147483647"),
]


class TestRefused:
    @pytest.mark.parametrize(
        ("message", "field", "words"),
        BAD_MESSAGES,
        ids=[f"{m[1]}-{m[2][:20]}" for m in BAD_MESSAGES],
    )
    def test_names_the_field_and_stores_nothing(
        self, store: Store, root: Path, message: Message, field: str, words: str
    ) -> None:
        result = store.try_put(message)
        assert result.status is PutStatus.MESSAGE_ILLEGAL
        assert result.field == field
        assert words in result.detail
        assert result.messages == 0
        with pytest.raises(IllegalMessageError, match=r"\S"):
            store.put(message)
        assert store.log_range == (0, 0)
        assert not list((root / "commitlog").iterdir())

    @pytest.mark.parametrize("size", [32768, 40000])
    def test_properties_too_long(self, open_store: OpenStore, size: int) -> None:
        store = open_store(log=1 << 20)
        result = store.try_put(Message("T", b"", raw_properties=b"x" * size))
        assert result.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        assert result.detail == f"{size} bytes, at most 32767"
        with pytest.raises(PropertiesTooLongError, match="properties: "):
            result.require_ok()

    def test_properties_too_long_with_what_the_store_adds(self, open_store: OpenStore) -> None:
        plain = open_store(log=1 << 20)
        longest = b"a\x01" + b"x" * 32764 + b"\x02"
        assert plain.put(Message("T", b"", raw_properties=longest)).ok
        plain.close()
        sealing = open_store(log=1 << 20, property_crc=True)
        status = sealing.try_put(Message("T", b"", raw_properties=longest)).status
        assert status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        delayed = b"DELAY\x011\x02" + longest[8:]
        status = plain_delay(sealing, delayed)
        assert status is PutStatus.PROPERTIES_SIZE_EXCEEDED

    def test_a_body_longer_than_the_limit_is_refused(self, open_store: OpenStore) -> None:
        store = open_store(max_message_size=1000)
        assert store.put(Message("T", b"x" * 1000)).ok
        assert store.try_put(Message("T", b"x" * 1001)).status is PutStatus.MESSAGE_ILLEGAL

    def test_a_record_that_no_file_can_hold(self, store: Store) -> None:
        """The body fits, the record with its properties does not."""
        room = store.config.max_message_size
        result = store.try_put(Message("T", b"x" * room, properties={"a": "b" * 200}))
        assert (result.status, result.field) == (PutStatus.MESSAGE_ILLEGAL, "message")
        assert "a record of" in result.detail

    def test_the_largest_record_fills_a_file(self, store: Store) -> None:
        room = 4096 - layout.BLANK.size - layout.RECORD_SIZE_MIN - 1
        raw = b"x" * (room - 3900)
        put_all(store, [b"x" * 3900] * 3, raw_properties=raw)
        assert store.log_range[1] == 2 * 4096 + 4088
        assert len(bodies(store)) == 3

    def test_a_slave_refuses_messages(self, open_store: OpenStore) -> None:
        from firetrail.store.settings.store_config import BrokerRole

        store = open_store(role=BrokerRole.SLAVE)
        result = store.try_put(Message("T", b"x"))
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "the store is a slave" in result.detail
        assert store.try_put_batch(Batch.of([Message("T", b"x")])).status is result.status


def plain_delay(store: Store, raw: bytes) -> PutStatus:
    return store.try_put(Message("T", b"", raw_properties=raw)).status


class TestClock:
    def test_store_times_stay_during_a_small_step_back(
        self, store: Store, machine: Machine
    ) -> None:
        times = []
        for step in (0, 5, -3, -59_000, +59_100):
            machine.clock.ms += step
            times.append(store.put(Message("T", b"x")).store_time)
        assert times == [START_MS, START_MS + 5, START_MS + 5, START_MS + 5, START_MS + 102]

    def test_and_follow_a_large_one(self, store: Store, machine: Machine) -> None:
        """Or a clock that was once years ahead would date everything after it."""
        machine.clock.ms += 10 * 365 * 86_400_000
        store.put(Message("T", b"future"))
        machine.clock.set_wall(START_MS)
        assert store.put(Message("T", b"now")).store_time == START_MS
        assert store.put_batch([Message("T", b"now")]).store_time == START_MS

    def test_batches_keep_to_it_as_well(self, store: Store, machine: Machine) -> None:
        store.put(Message("T", b"x"))
        machine.clock.ms -= 1000
        assert store.put_batch([Message("T", b"x")]).store_time == START_MS

    def test_a_reopened_store_keeps_its_last_time(
        self, open_store: OpenStore, machine: Machine
    ) -> None:
        store = open_store()
        put_all(store, [b"x"])
        store.close()
        machine.clock.ms -= 1000
        assert open_store().put(Message("T", b"x")).store_time == START_MS
