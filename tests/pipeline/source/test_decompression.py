"""Decompression of the bodies of a batch; tests/format/test_compression.py is about single ones."""

import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from tests.pipeline.source.shelf import fill, rows_of

from firetrail import Message
from firetrail.errors import FormatError
from firetrail.format import compression
from firetrail.pipeline.source import decompression

TEXT = b"again and again " * 500
ZLIB, LZ4, ZSTD, ZLIB_AGAIN = 0x1, 0x101, 0x201, 0x301


def packed(codec: str, body: bytes = TEXT) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(body)
    return bytes(out.getvalue())


PACKED = {
    ZLIB: zlib.compress(TEXT),
    ZLIB_AGAIN: zlib.compress(TEXT),
    LZ4: packed("lz4"),
    ZSTD: packed("zstd"),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    packed_ones = [Message("T", body, sys_flag=flag) for flag, body in PACKED.items()]
    fill(tmp_path, [Message("T", b"plain"), *packed_ones])
    return tmp_path


def test_compressed_bodies_of_a_store_are_decompressed(store: Path) -> None:
    stored = [row["body"] for row in rows_of(store, ("body",))]
    assert stored == [b"plain", *PACKED.values()]
    inflated = [row["body"] for row in rows_of(store, ("body",), how={"decompress": True})]
    assert inflated == [b"plain", *[TEXT] * len(PACKED)]


def test_the_flags_of_compression_are_cleared_with_it(store: Path) -> None:
    """So that the rows can be written to a store, and read by programs that look at the flags."""
    fill(store, [Message("T", PACKED[ZSTD], sys_flag=ZSTD | 0x8)])
    stored = [row["sys_flag"] for row in rows_of(store, ("sys_flag",))]
    assert stored == [0, *PACKED, ZSTD | 0x8]
    inflated = [row["sys_flag"] for row in rows_of(store, ("sys_flag",), how={"decompress": True})]
    assert inflated == [0] * 5 + [0x8]


def test_a_body_that_does_not_inflate(store: Path) -> None:
    fill(store, [Message("T", b"no zlib", sys_flag=ZLIB), Message("T", b"more")])
    with pytest.raises(FormatError, match="decompress=false") as caught:
        rows_of(store, how={"decompress": True})
    rows = rows_of(store, how={"decompress": True, "permissive": True}, mode="permissive")
    (row,) = [row for row in rows if row["body"] is None]
    assert row["physical_offset"] == caught.value.offset
    assert rows[-1]["body"] == b"more"


def test_an_unknown_method_is_an_error_as_in_the_client(tmp_path: Path) -> None:
    fill(tmp_path, [Message("T", zlib.compress(TEXT), sys_flag=0x501)])
    with pytest.raises(FormatError, match=r"method 5 is unknown; read with decompress=false"):
        rows_of(tmp_path, how={"decompress": True})


def test_a_body_beyond_the_limit_is_an_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "INFLATED_MAX", len(TEXT))
    assert len(rows_of(store, how={"decompress": True})) == 5
    monkeypatch.setattr(compression, "INFLATED_MAX", len(TEXT) - 1)
    with pytest.raises(FormatError, match="more than 7999 bytes"):
        rows_of(store, how={"decompress": True})


def test_bodies_that_are_too_large_together(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompression, "BATCH_INFLATED_MAX", 2 * len(TEXT))
    with pytest.raises(FormatError, match=r"have more than \d+ bytes together"):
        rows_of(store, how={"decompress": True})
