"""Decoding one record at a time: every field, and an error for every one that is wrong."""

from dataclasses import replace
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.format.kernels.drafts import V4, V6, Draft, drafts
from tests.stores import GOLDEN

from firetrail.errors import FormatError
from firetrail.format import layout
from firetrail.format.record import Blank, Record, decode_message, decode_received, decode_record
from firetrail.format.values.hosts import Host, pack_ip
from firetrail.format.values.javahash import java_text

SAMPLE = bytes.fromhex(  # the first message of the golden store v4-clean
    "000000a6 daa320a7 20e809f1 00000000 00000007 0000000000000000 0000000000000000 00000000"
    "00000174876e807b 0a010203 0000c351 000001a1de007cc9 c0a80102 00002a9f 00000000"
    "0000000000000000 00000007 68656c6c6f2030 02 5431 0042"
) + (b"KEYS\x01k0 common\x02UNIQ_KEY\x010A0102030000C351AABBCCDD00000000\x02TAGS\x01Tag0")


def decoded(data: bytes | bytearray | memoryview, at: int = 0, *, check_crc: bool = True) -> Record:
    record = decode_record(data, at, check_crc=check_crc)
    assert isinstance(record, Record)
    return record


def test_a_record_of_java_is_decoded() -> None:
    record = decoded(SAMPLE[:100] + SAMPLE[100:])
    assert record == Record(
        size=166,
        magic=layout.MAGIC_V1,
        body_crc=0x20E809F1,
        queue_id=0,
        flag=7,
        queue_offset=0,
        physical_offset=0,
        sys_flag=0,
        born_time=1600000000123,
        born_host=Host("10.1.2.3", 50001),
        store_time=1794725936329,
        store_host=Host("192.168.1.2", 10911),
        reconsume_times=0,
        prepared_offset=0,
        body=b"hello 0",
        topic="T1",
        raw_properties=SAMPLE[100:],
    )
    assert record.tags == "Tag0"
    assert record.keys == ("k0", "common")
    assert record.unique_key == "0A0102030000C351AABBCCDD00000000"
    assert record.message_id == "C0A8010200002A9F0000000000000000"
    assert record.crc_ok


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        decoded(SAMPLE).queue_id = 1  # type: ignore[misc]


def test_a_record_without_properties_has_no_tags_and_keys() -> None:
    record = decoded(Draft(properties=b"").pack(0))
    assert record.properties == {}
    assert record.tags is record.unique_key is None
    assert record.keys == ()


@given(drafts, st.binary(max_size=20), st.integers(0, 2**63 - 1))
def test_every_field_is_decoded(draft: Draft, before: bytes, offset: int) -> None:
    data = before + draft.pack(offset) + b"after"
    record = decoded(memoryview(data), len(before))
    assert record.size == draft.size
    assert record.physical_offset == offset
    assert record.sys_flag == draft.flags
    assert record.topic == java_text(draft.topic)
    for host, raw in (record.born_host, draft.born_host), (record.store_host, draft.store_host):
        assert pack_ip(host.ip) + pack(">i", host.port) == raw
    names = ("body", "queue_id", "flag", "queue_offset", "born_time", "store_time")
    for name in (*names, "reconsume_times", "prepared_offset"):
        assert getattr(record, name) == getattr(draft, name), name
    assert record.raw_properties.startswith(draft.properties)
    assert len(record.raw_properties) - len(draft.properties) == 20 * draft.property_crc


@given(st.binary(max_size=150), st.integers(-10, 160))
def test_any_bytes_are_a_record_or_a_format_error(data: bytes, at: int) -> None:
    """Either a value or an error that says where; never another exception."""
    if len(data) >= 36:
        data = b"\0\0\0" + data[3:4] + pack(">I", layout.MAGIC_V1) + data[8:]
    try:
        decode_record(data, at)
    except FormatError as error:
        assert at <= error.offset <= max(len(data), at)


def test_values_outlive_the_buffer() -> None:
    data = bytearray(SAMPLE)
    record = decoded(data)
    data.clear()  # fails while a view of it is held
    assert record.body == b"hello 0"


class TestBlank:
    def test_a_blank_has_its_size(self) -> None:
        assert decode_record(pack(">iI", 1234, layout.MAGIC_BLANK)) == Blank(1234)
        assert decode_record(bytes(5) + pack(">iI", 8, layout.MAGIC_BLANK), 5) == Blank(8)

    @pytest.mark.parametrize("size", [7, 0, -1])
    def test_a_blank_that_is_too_small_is_refused(self, size: int) -> None:
        with pytest.raises(FormatError, match=f"blank size at offset 0: {size} is less than 8"):
            decode_record(pack(">iI", size, layout.MAGIC_BLANK))


class TestErrors:
    AT = 10

    @pytest.mark.parametrize(
        ("at", "code", "value", "message"),
        [
            (0, ">i", 90, "total size at offset 10: 90 is not in 91..121 (the bytes there)"),
            (0, ">i", -1, "total size at offset 10: -1 is not in 91..121 (the bytes there)"),
            (0, ">i", 122, "total size at offset 10: 122 is not in 91..121 (the bytes there)"),
            (4, ">I", 0, "magic at offset 14: 0x00000000 is not that of a record"),
            (8, ">i", 1, "body CRC at offset 18: 0x00000001 is stored, the body's is 0x5BA80BB2"),
            (36, ">i", 0x30, "body length at offset 118: "),
            (84, ">i", -1, "body length at offset 94: -1 in 121 bytes"),
            (84, ">i", 31, "body length at offset 94: 31 in 121 bytes"),
            (92, ">B", 128, "topic length at offset 102: 128 in 121 bytes"),
            (92, ">B", 29, "topic length at offset 102: 29 in 121 bytes"),
            (98, ">h", 20, "properties length at offset 108: 20 does not end at the total size "),
            (98, ">h", -1, "properties length at offset 108: -1 does not end at the total size "),
        ],
    )
    def test_errors_name_field_and_offset(
        self, at: int, code: str, value: int, message: str
    ) -> None:
        data = bytearray(self.AT) + Draft().pack(0)
        pack_into(code, data, self.AT + at, value)
        with pytest.raises(FormatError) as caught:
            decode_record(data, self.AT)
        assert str(caught.value).startswith(message)

    def test_hosts_that_leave_no_room(self) -> None:
        data = bytearray(Draft(b"", b"", b"").pack(0))
        pack_into(">i", data, 36, 0x30)
        with pytest.raises(FormatError, match="total size at offset 0: 91 bytes end inside"):
            decode_record(data)

    @pytest.mark.parametrize(("size", "at"), [(0, 0), (7, 0), (100, 93), (100, 200), (100, -8)])
    def test_a_record_outside_the_buffer_is_an_error(self, size: int, at: int) -> None:
        with pytest.raises(FormatError, match=f"record at offset {at}: "):
            decode_record(bytes(size), at)

    def test_long_topics_need_a_v2_record(self) -> None:
        data = Draft(topic=b"t" * 128).pack(0)
        assert decoded(data).topic == "t" * 128
        data = data[:4] + pack(">I", layout.MAGIC_V1) + data[8:]
        with pytest.raises(FormatError, match="properties length"):
            decode_record(data)

    def test_crc_only_if_asked_for(self) -> None:
        data = bytearray(Draft().pack(0))
        data[88] ^= 1
        record = decoded(data, check_crc=False)
        assert not record.crc_ok
        with pytest.raises(FormatError, match="body CRC at offset 8"):
            decode_record(data)

    @pytest.mark.parametrize("host", [V4, V6])
    def test_a_negative_crc_fits_no_body(self, host: bytes) -> None:
        data = bytearray(replace(Draft(), born_host=host).pack(0))
        data[8] |= 0x80
        assert not decoded(data, check_crc=False).crc_ok


class TestSealed:
    """A record with the property ``__CRC32#``: of the golden store v5-propcrc, the first."""

    def test_every_bit_counts(self) -> None:
        good = self.record()
        assert decode_message(good).topic == "T1"
        unnoticed = []
        for bit in range(8 * len(good)):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            try:
                decode_message(bad)
            except FormatError:
                continue
            unnoticed.append(bit // 8)
        mark = len(good) - layout.PROPERTY_CRC_SIZE
        assert set(unnoticed) <= {*range(mark, mark + 9), len(good) - 1}  # then it is not sealed

    def test_brokers_may_change_it_on_the_way(self) -> None:
        changed = bytearray(self.record())
        changed[layout.RECORD_HEAD.offsets["queue_id"] + 3] ^= 1
        assert decode_received(changed).queue_id == 1
        with pytest.raises(FormatError, match="property CRC"):
            decode_message(changed)

    @staticmethod
    def record() -> bytes:
        content = (GOLDEN / "v5-propcrc/commitlog/00000000000000000000").read_bytes()
        return content[: int.from_bytes(content[:4], "big")]
