"""Decompression of bodies."""

import gzip
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from tests.pipeline.source.shelf import fill, rows_of

from firetrail import Message
from firetrail.errors import FormatError
from firetrail.pipeline.source import bodies
from firetrail.pipeline.source.bodies import inflate_one

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


def test_gzip_is_decompressed_under_the_flag_of_zlib() -> None:
    assert inflate_one(gzip.compress(TEXT), ZLIB) == TEXT


@pytest.mark.parametrize("flag", PACKED)
class TestOne:
    def test_a_complete_body_is_decompressed(self, flag: int) -> None:
        assert inflate_one(PACKED[flag], flag) == TEXT

    def test_a_truncated_body_is_an_error(self, flag: int) -> None:
        for cut in (1, len(PACKED[flag]) // 2, len(PACKED[flag])):
            with pytest.raises((ValueError, OSError, zlib.error)):
                inflate_one(PACKED[flag][:-cut], flag)

    def test_a_body_that_is_not_compressed_is_an_error(self, flag: int) -> None:
        with pytest.raises((ValueError, OSError, zlib.error)):
            inflate_one(b"plain text", flag)

    def test_a_body_beyond_the_limit_is_an_error(
        self, flag: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bodies, "INFLATED_MAX", len(TEXT))
        assert inflate_one(PACKED[flag], flag) == TEXT
        monkeypatch.setattr(bodies, "INFLATED_MAX", len(TEXT) - 1)
        with pytest.raises(ValueError, match="truncated, or longer than"):
            inflate_one(PACKED[flag], flag)


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


def test_a_body_that_does_not_inflate(store: Path) -> None:
    fill(store, [Message("T", b"no zlib", sys_flag=ZLIB), Message("T", b"more")])
    with pytest.raises(FormatError, match="decompress=false") as caught:
        rows_of(store, how={"decompress": True})
    rows = rows_of(store, how={"decompress": True, "permissive": True}, mode="permissive")
    (row,) = [row for row in rows if row["body"] is None]
    assert row["physical_offset"] == caught.value.offset
    assert rows[-1]["body"] == b"more"


def test_bodies_that_are_too_large_together(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BATCH_INFLATED_MAX", 2 * len(TEXT))
    with pytest.raises(FormatError, match=r"have more than \d+ bytes together"):
        rows_of(store, how={"decompress": True})
