"""The hash of UTF-8 in place, and the CRC: seen through the scan and the writer that use them."""

import zlib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.format.kernels.drafts import Draft, fenced, scan_all

from firetrail.format import kernels
from firetrail.format.columns import Check, Stop
from firetrail.format.values.javahash import java_hash, java_text

# One of each kind of byte that UTF-8 tells apart, and the edges of each range.
LEADS = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1]
LEADS += [0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFC, 0xFE, 0xFF]


def tag_hash(raw: bytes) -> int:
    log = Draft(properties=b"TAGS\x01" + raw).pack(0)
    columns, rows, _, stop = scan_all(fenced(log), check=Check.NONE)
    assert (rows, stop) == (1, Stop.LIMIT)
    return columns.row(0)["tags_hash"]


def assert_as_decoded(raw: bytes) -> None:
    raw = raw.replace(b"\x02", b"\x03")  # ends a property
    assert tag_hash(raw) == java_hash(java_text(raw)), raw.hex(" ")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@example("TagA")
@example("中文")
@example("\U0001f600 and \U0010ffff")
@example("\uffff\u0800\u07ff\u0080\x7f")
def test_text_is_decoded_as_by_java(text: str) -> None:
    assert_as_decoded(text.encode())


@pytest.mark.parametrize("size", range(40))
def test_text_of_every_length_is_decoded_as_by_java(size: int) -> None:
    assert_as_decoded(bytes(range(33, 33 + size)))
    assert_as_decoded(b"x" * size + "é".encode() + b"y" * size)


@given(st.binary(max_size=20))
def test_any_bytes_are_decoded_as_by_java(raw: bytes) -> None:
    assert_as_decoded(raw)


@given(st.lists(st.sampled_from(LEADS), max_size=8).map(bytes))
def test_malformed_text_is_decoded_as_by_java(raw: bytes) -> None:
    assert_as_decoded(raw)


@pytest.mark.slow
def test_three_malformed_bytes_are_decoded_as_by_java() -> None:
    for one in LEADS:
        for two in LEADS:
            for three in LEADS:
                assert_as_decoded(bytes((one, two, three)))


@given(st.lists(st.sampled_from(LEADS), max_size=6).map(bytes))
def test_topics_have_the_hash_of_java(raw: bytes) -> None:
    columns, rows, _, _ = scan_all(fenced(Draft(topic=raw).pack(0)))
    assert rows == 1
    assert columns.row(0)["topic_hash"] == java_hash(java_text(raw))


@pytest.fixture(scope="module")
def checksum_source() -> ModuleType:
    """The uncompiled kernel, also where the compiled one is in use."""
    spec = spec_from_file_location("checksum_source", Path(kernels.__path__[0], "checksum.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module._fill_tables()
    return module


@given(st.binary(max_size=64))
def test_the_checksum_by_tables_is_crc_32(checksum_source: ModuleType, data: bytes) -> None:
    """The way of processors without carry-less multiplication: sixteen bytes a step."""
    data = data[: len(data) // 16 * 16]
    crc = 0xFFFFFFFF
    for at in range(0, len(data), 16):
        crc = checksum_source._step_16(crc, data, at)
    assert crc ^ 0xFFFFFFFF == zlib.crc32(data)


class TestChecksum:
    """The writer computes what the scan compares with, so zlib packs the records here."""

    @pytest.mark.parametrize("size", [*range(300), 1000, 4095, 4096, 4097, 65536])
    def test_bodies_of_every_length_are_checked(self, size: int) -> None:
        body = bytes((i * 7 + i // 256) & 0xFF for i in range(size))
        log = Draft(body).pack(0)
        assert scan_all(fenced(log), check=Check.BODY)[3] == Stop.LIMIT
        if size:
            damaged = bytearray(log)
            damaged[88 + size // 2] ^= 0x10
            assert scan_all(fenced(damaged), check=Check.BODY)[3] == Stop.BODY_CRC

    @given(st.binary(max_size=600))
    def test_the_checksum_of_any_body_is_crc_32(self, body: bytes) -> None:
        draft = Draft(body)
        log = draft.pack(0)
        columns, _, _, stop = scan_all(fenced(log), check=Check.BODY)
        assert stop == Stop.LIMIT
        assert columns.row(0)["body_crc"] == zlib.crc32(body) & 0x7FFFFFFF

    @given(st.binary(max_size=200), st.binary(max_size=200))
    def test_the_checksum_of_a_whole_record_is_checked(self, body: bytes, raw: bytes) -> None:
        log = Draft(body, properties=raw, property_crc=True).pack(0)
        assert scan_all(fenced(log), check=Check.RECORD)[3] == Stop.LIMIT
