"""Compressed bodies. The LZ4 and zstd ones are created with other libraries than they are read."""

from __future__ import annotations

import gzip
import importlib
import sys
import zlib
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.client import compression
from firetrail.client.compression import inflated
from firetrail.errors import FormatError

TEXT = b"what a lot of words " * 500
MODULES = {0x100: {"lz4.frame"}, 0x200: {"compression.zstd", "zstandard"}}
CODECS = {0x100: "lz4", 0x200: "zstd"}


def installed(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def compressed(body: bytes, kind: int) -> bytes:
    if kind in CODECS:
        if not any(map(installed, MODULES[kind])):
            pytest.skip(f"{CODECS[kind]} comes with the extra compression")
        return bytes(pa.compress(body, codec=CODECS[kind], asbytes=True))
    return zlib.compress(body)


@pytest.mark.parametrize("kind", [0x000, 0x100, 0x200, 0x300])
class TestMethods:
    def test_compressed_bodies_are_decompressed(self, kind: int) -> None:
        assert inflated(compressed(TEXT, kind), kind | 1) == TEXT
        assert inflated(compressed(b"", kind), kind | 1) == b""

    @pytest.mark.parametrize("raw", [b"", b"no stream at all"])
    def test_a_body_that_is_not_compressed_is_an_error(self, kind: int, raw: bytes) -> None:
        compressed(b"", kind)
        with pytest.raises(FormatError, match="compressed body"):
            inflated(raw, kind | 1)

    def test_a_truncated_body_is_an_error(self, kind: int) -> None:
        raw = compressed(TEXT, kind)
        for end in (5, len(raw) // 2, len(raw) - 1):
            with pytest.raises(FormatError, match="compressed body"):
                inflated(raw[:end], kind | 1)

    def test_a_body_that_expands_beyond_the_limit_is_an_error(
        self, kind: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compression, "INFLATED_MAX", 100_000)
        with pytest.raises(FormatError, match="more than 100000 bytes"):
            inflated(compressed(bytes(50_000_000), kind), kind | 1)

    @given(raw=st.binary(max_size=200))
    def test_random_bytes_raise_only_format_errors(self, kind: int, raw: bytes) -> None:
        compressed(b"", kind)
        try:
            inflated(raw, kind | 1)
        except FormatError as error:
            assert "compressed body" in str(error)


@pytest.mark.parametrize("kind", [0x100, 0x200])
def test_a_missing_library_is_named(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        if name in MODULES[kind]:
            raise ImportError(name)
        return importlib.import_module(name)

    monkeypatch.setattr(compression, "import_module", missing)
    with pytest.raises(FormatError, match=r"pip install 'firetrail\[compression\]'"):
        inflated(b"", kind | 1)


@pytest.mark.parametrize("absent", sorted(MODULES[0x200]))
def test_either_zstd_module_suffices(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library has one from Python 3.14 on; the extra is for older versions."""
    if not any(map(installed, MODULES[0x200] - {absent})):
        pytest.skip(f"only {absent} is installed")
    monkeypatch.setitem(sys.modules, absent, None)
    assert inflated(compressed(TEXT, 0x200), 0x201) == TEXT


def test_gzip_is_decompressed_under_the_flag_of_zlib() -> None:
    """RocketMQ's proxy stores the gzip of gRPC clients so."""
    assert inflated(gzip.compress(TEXT), 1) == TEXT
    with pytest.raises(FormatError, match="cut off"):
        inflated(gzip.compress(TEXT)[:-1], 1)


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(FormatError, match="method 5 is unknown"):
        inflated(b"", 0x501)
