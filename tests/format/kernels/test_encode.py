"""Writing records: the same bytes as packed by hand, and never one outside of its place."""

from dataclasses import replace
from struct import pack, pack_into
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.format.kernels.drafts import ANY_RECORD, V4, V6, Draft, drafts, fenced, int32, scan_all

from firetrail.errors import FormatError
from firetrail.format import layout
from firetrail.format.batch import BatchItem, decode_batch, encode_batch
from firetrail.format.columns import Check, Stop
from firetrail.format.kernels.encode import (
    RecordFields,
    RecordWriter,
    measure_batch,
    record_size,
    with_crc_room,
)
from firetrail.format.record import Blank, Record, decode_record

CRC_BYTES = layout.PROPERTY_CRC_SIZE

items = st.lists(
    st.builds(
        BatchItem,
        int32,
        st.binary(max_size=40),
        st.one_of(
            st.sampled_from([b"", b"KEYS\x01b0", b"KEYS\x01b0\x02", b"\x02"]),
            st.binary(max_size=20),
        ),
    ),
    min_size=1,
    max_size=5,
)


class TestWrite:
    @given(drafts, st.integers(0, 2**62), st.integers(0, 40), st.integers(0, 40))
    def test_a_written_record_equals_one_packed_by_hand(
        self, draft: Draft, offset: int, before: int, after: int
    ) -> None:
        expected = draft.pack(offset)
        out = fenced(b"\xaa" * (before + len(expected) + after))
        assert draft.write(RecordWriter(out), before, offset) == len(expected)
        assert bytes(out) == b"\xaa" * before + expected + b"\xaa" * after

    @given(st.lists(drafts, min_size=1, max_size=4), st.integers(0, 2**62))
    def test_scans_as_written(self, messages: list[Draft], base: int) -> None:
        out = bytearray(sum(draft.size for draft in messages))
        writer = RecordWriter(out)
        at = 0
        for draft in messages:
            at += draft.write(writer, at, base + at)
        for check in ANY_RECORD:
            assert scan_all(out, base, check)[1:] == (len(messages), len(out), Stop.LIMIT)

    @pytest.mark.parametrize("topic_size", [0, 1, 127, 128, 255, 32767])
    def test_version_follows_the_topic(self, topic_size: int) -> None:
        draft = Draft(topic=b"t" * topic_size)
        out = bytearray(draft.size)
        draft.write(RecordWriter(out), 0, 0)
        record = decode_record(out)
        assert isinstance(record, Record)
        assert record.magic == (layout.MAGIC_V1 if topic_size <= 127 else layout.MAGIC_V2)
        assert len(record.topic) == topic_size

    @pytest.mark.parametrize("at", [-1, 1, 2**62, 2**63 - 1, -(2**63)])
    def test_a_write_outside_the_buffer_is_refused(self, at: int) -> None:
        draft = Draft()
        out = fenced(bytes(draft.size))
        with pytest.raises(ValueError, match=f"{draft.size} bytes at {at} exceed the buffer of"):
            draft.write(RecordWriter(out), at, 0)
        assert not any(out)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("topic", b"t" * 32768),
            ("properties", b"p" * 32768),
            ("born_host", V4[:7]),
            ("born_host", b""),
            ("store_host", V6[:19]),
            ("queue_id", 2**31),
            ("queue_id", -(2**31) - 1),
            ("flag", 2**31),
            ("sys_flag", 2**31),
            ("reconsume_times", 2**40),
        ],
    )
    def test_values_that_a_record_cannot_hold_are_refused(self, field: str, value: Any) -> None:
        draft = replace(Draft(), **{field: value})
        out = fenced(bytes(draft.fields(0).size))
        with pytest.raises(ValueError, match=field.replace("_", " ")):
            draft.write(RecordWriter(out), 0, 0)
        assert not any(out)

    @pytest.mark.parametrize("born_host", [V4, V6])
    @pytest.mark.parametrize("store_host", [V4, V6])
    def test_hosts_that_the_sys_flag_denies_are_refused(
        self, born_host: bytes, store_host: bytes
    ) -> None:
        right = Draft(born_host=born_host, store_host=store_host).flags
        for flags in (0, 0x10, 0x20, 0x30):
            fields = RecordFields(b"t", born_host, store_host, sys_flag=flags)
            writer = RecordWriter(bytearray(fields.size))
            if flags == right:
                writer.write(0, fields)
            else:
                with pytest.raises(ValueError, match="host"):
                    writer.write(0, fields)

    @pytest.mark.parametrize("out", [bytearray(), memoryview(bytearray())])
    def test_a_write_into_an_empty_buffer_is_refused(self, out: bytearray) -> None:
        with pytest.raises(ValueError, match="buffer of 0"):
            Draft().write(RecordWriter(out), 0, 0)

    def test_read_only_buffer(self) -> None:
        with pytest.raises((ValueError, BufferError, TypeError)):
            Draft().write(RecordWriter(bytes(1000)), 0, 0)

    def test_the_buffer_stays_in_use(self) -> None:
        out = bytearray(1000)
        writer = RecordWriter(out)
        with pytest.raises(BufferError):
            out.clear()
        Draft().write(writer, 0, 0)


class TestSeal:
    @given(st.binary(max_size=30), st.sampled_from([b"", b"K\x01v", b"K\x01v\x02"]))
    def test_room_is_made_and_filled(self, body: bytes, raw: bytes) -> None:
        room = with_crc_room(raw)
        assert len(room) % 20 == (len(raw) + (raw[-1:] not in (b"", b"\x02"))) % 20
        draft = Draft(body=body, properties=room[:-20], property_crc=True)
        out = bytearray(draft.size)
        draft.write(RecordWriter(out), 0, 0)
        assert out == draft.pack(0)
        assert scan_all(out, check=Check.RECORD)[3] == Stop.LIMIT

    @pytest.mark.parametrize(
        ("at", "size"),
        [(-1, 100), (0, 201), (101, 100), (0, 19), (0, -1), (2**62, 2**62), (-(2**62), 2**62)],
    )
    def test_a_seal_outside_the_buffer_is_refused(self, at: int, size: int) -> None:
        out = fenced(bytes(200))
        with pytest.raises(ValueError, match=f"{size} bytes at {at}"):
            RecordWriter(out).seal(at, size)
        assert not any(out)


class TestBlank:
    def test_says_how_much_is_left(self) -> None:
        out = bytearray(32)
        RecordWriter(out).blank(24, 8)
        assert out == bytes(24) + pack(">iI", 8, layout.MAGIC_BLANK)
        assert decode_record(out, 24) == Blank(8)

    @pytest.mark.parametrize("at", [-1, 25, 2**62, -(2**63)])
    def test_a_blank_outside_the_buffer_is_refused(self, at: int) -> None:
        out = fenced(bytes(32))
        with pytest.raises(ValueError, match=f"at {at}"):
            RecordWriter(out).blank(at, 8)
        assert not any(out)

    @pytest.mark.parametrize("size", [-1, 0, 7, 2**31])
    def test_size_that_no_blank_has(self, size: int) -> None:
        with pytest.raises(ValueError, match=f"{size} bytes"):
            RecordWriter(bytearray(32)).blank(0, size)


def records_of(
    batch: bytes, shared: bytes, property_crc: bool, template: Draft, offset: int
) -> list[bytes]:
    """Return the records of the items of a batch, each packed by hand."""
    records = []
    for number, item in enumerate(decode_batch(batch)):
        raw = item.properties
        if raw and not raw.endswith(b"\x02") and (shared or property_crc):
            raw += b"\x02"
        draft = replace(
            template,
            body=item.body,
            flag=item.flag,
            properties=raw + shared,
            queue_offset=template.queue_offset + number,
            prepared_offset=0,
            property_crc=property_crc,
        )
        records.append(draft.pack(offset))
        offset += len(records[-1])
    return records


def write_batch(
    out: bytearray | memoryview,
    at: int,
    batch: bytes | memoryview,
    template: Draft,
    offset: int,
    shared: bytes = b"",
    property_crc: bool = False,
) -> int:
    common = replace(template, body=b"", properties=shared, prepared_offset=0, property_crc=False)
    return RecordWriter(out).write_batch(at, batch, common.fields(offset), property_crc)


class TestBatch:
    @given(
        items,
        st.sampled_from([b"", b"CLUSTER\x01c\x02"]),
        st.booleans(),
        st.sampled_from([V4, V6]),
        st.sampled_from([b"T", b"T" * 200]),
        st.integers(0, 30),
    )
    def test_a_batch_is_written_as_single_messages_are(
        self,
        batch_items: list[BatchItem],
        shared: bytes,
        property_crc: bool,
        host: bytes,
        topic: bytes,
        before: int,
    ) -> None:
        batch = encode_batch(batch_items)
        template = Draft(topic=topic, born_host=host)
        expected = records_of(batch, shared, property_crc, template, 999)
        count, total, largest = measure_batch(
            fenced(batch), len(host) + 8, len(topic), len(shared), property_crc
        )
        assert (count, total) == (len(batch_items), sum(map(len, expected)))
        assert largest == max(map(len, expected))
        out = fenced(bytes(before + total))
        end = write_batch(out, before, fenced(batch), template, 999, shared, property_crc)
        assert end == len(out)
        assert bytes(out[before:]) == b"".join(expected)

    def test_shared_properties_without_their_last_separator(self) -> None:
        """As 4.9.1 to 5.1.4 append them; only the property CRC needs the separator."""
        batch = encode_batch([BatchItem(0, b"b", b"K\x01v")])
        shared = b"CLUSTER\x01c"
        _, total, _ = measure_batch(batch, 16, 5, len(shared), False)
        out = bytearray(total)
        write_batch(out, 0, batch, Draft(), 0, shared)
        assert out == b"".join(records_of(batch, shared, False, Draft(), 0))
        with pytest.raises(ValueError, match="separator"):
            write_batch(bytearray(total + 40), 0, batch, Draft(), 0, shared, True)

    @given(st.binary(max_size=100), st.booleans())
    def test_anything_is_measured_as_decoded(self, data: bytes, plausible: bool) -> None:
        if plausible and len(data) >= 20:
            data = pack(">i", len(data)) + data[4:16] + b"\0\0\0" + data[19:]
        self.assert_measured_as_decoded(data)

    @given(items, st.lists(st.tuples(st.integers(0, 2**10), st.integers(0, 255)), max_size=3))
    def test_damage_is_measured_as_decoded(
        self, batch_items: list[BatchItem], changes: list[tuple[int, int]]
    ) -> None:
        data = bytearray(encode_batch(batch_items))
        for at, byte in changes:
            data[at % len(data)] = byte
        self.assert_measured_as_decoded(bytes(data))
        self.assert_measured_as_decoded(bytes(data[:-1]))

    def assert_measured_as_decoded(self, data: bytes) -> None:
        try:
            decoded = decode_batch(data)
            assert decoded, "no item is an error here"
        except (FormatError, AssertionError):
            with pytest.raises(FormatError, match="batch"):
                measure_batch(fenced(data), 16, 5, 0, False)
            if data:
                out = fenced(bytes(4096))
                with pytest.raises((FormatError, ValueError)):
                    write_batch(out, 0, fenced(data), Draft(), 0)
        else:
            assert measure_batch(fenced(data), 16, 5, 0, False)[0] == len(decoded)

    @pytest.mark.parametrize(
        ("at", "value", "message"),
        [
            (22, 21, "total size of batch item 1 at offset 22: 21 "),
            (22, 2**31 - 1, "total size of batch item 1 at offset 22: 2147483647 of 26 bytes left"),
            (22, -(2**31), "total size of batch item 1 at offset 22"),
            (38, -1, "body length of batch item 1 at offset 38: -1 in an item of 26 bytes"),
            (38, 5, "body length of batch item 1 at offset 38: 5 "),
            (38, 3, "properties length of batch item 1 at offset 45: "),
        ],
    )
    def test_errors_name_item_field_and_offset(self, at: int, value: int, message: str) -> None:
        data = bytearray(encode_batch([BatchItem(0, b"", b""), BatchItem(0, b"body", b"")]))
        pack_into(">i", data, at, value)
        with pytest.raises(FormatError) as caught:
            measure_batch(data, 16, 5, 0, False)
        assert str(caught.value).startswith(message)

    def test_an_empty_batch_is_refused(self) -> None:
        with pytest.raises(FormatError, match="batch at offset 0: the batch is empty"):
            measure_batch(b"", 16, 5, 0, False)

    @pytest.mark.parametrize("property_crc", [False, True])
    def test_properties_that_do_not_fit(self, property_crc: bool) -> None:
        most = 32767 - 10 - (CRC_BYTES if property_crc else 0)
        fits = encode_batch(
            [BatchItem(0, b"", b""), BatchItem(0, b"", b"p" * (most - 1) + b"\x02")]
        )
        assert measure_batch(fits, 16, 5, 10, property_crc)[0] == 2
        over = encode_batch([BatchItem(0, b"", b""), BatchItem(0, b"", b"p" * most)])
        with pytest.raises(FormatError, match=r"properties of batch item 1 .* at most 32767"):
            measure_batch(over, 16, 5, 10, property_crc)
        with pytest.raises((FormatError, ValueError)):
            write_batch(
                fenced(bytes(70000)), 0, over, Draft(), 0, b"CLUSTER\x01c\x02", property_crc
            )

    @pytest.mark.parametrize("at", [-1, 1, 2**62, -(2**63)])
    def test_a_batch_outside_the_buffer_is_refused(self, at: int) -> None:
        batch = encode_batch([BatchItem(0, b"body", b"")])
        _, total, _ = measure_batch(batch, 16, 5, 0, False)
        out = fenced(bytes(total))
        with pytest.raises(ValueError, match=f"{total} bytes at {at} exceed the buffer"):
            write_batch(out, at, batch, Draft(), 0)
        assert not any(out)

    @pytest.mark.parametrize(
        "draft",
        [
            pytest.param(Draft(born_host=b"123"), id="born_host"),
            pytest.param(Draft(store_host=b"123"), id="store_host"),
        ],
    )
    def test_hosts_are_checked(self, draft: Draft) -> None:
        batch = encode_batch([BatchItem(0, b"body", b"")])
        with pytest.raises(ValueError, match="host"):
            write_batch(fenced(bytes(500)), 0, batch, draft, 0)


class TestRecordSize:
    @given(drafts)
    def test_the_size_is_that_of_a_record_packed_by_hand(self, draft: Draft) -> None:
        properties = len(draft.properties) + (20 if draft.property_crc else 0)
        assert (
            record_size(
                len(draft.born_host),
                len(draft.store_host),
                len(draft.body),
                len(draft.topic),
                properties,
            )
            == draft.size
        )
