"""Compressed bodies. The LZ4 and zstd ones are created with other libraries than they are read."""

import gzip
import importlib
import sys
import zlib
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format import compression
from firetrail.format.compression import inflated

TEXT = b"what a lot of words " * 500
STANDARD = {"compression.zstd"} if sys.version_info >= (3, 14) else {"zstandard"}
MODULES = {0x100: {"lz4.frame", "pyarrow"}, 0x200: {*STANDARD, "pyarrow"}}
CODECS = {0x100: "lz4", 0x200: "zstd"}


def compressed(body: bytes, kind: int) -> bytes:
    if kind in CODECS:
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


LIBRARIES = [(kind, name) for kind, names in MODULES.items() for name in sorted(names)]


@pytest.mark.parametrize(("kind", "library"), LIBRARIES)
class TestLibraries:
    """Whatever library is installed, the same bodies are decompressed and refused."""

    @pytest.fixture(autouse=True)
    def only(self, kind: int, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for other in MODULES[kind] - {library}:
            monkeypatch.setitem(sys.modules, other, None)

    def test_bodies(self, kind: int, library: str) -> None:
        assert inflated(compressed(TEXT, kind), kind | 1) == TEXT
        assert inflated(compressed(b"", kind), kind | 1) == b""

    def test_the_limit_is_exact(self, kind: int, library: str) -> None:
        assert inflated(compressed(TEXT, kind), kind | 1, len(TEXT)) == TEXT
        with pytest.raises(FormatError, match=f"more than {len(TEXT) - 1} bytes"):
            inflated(compressed(TEXT, kind), kind | 1, len(TEXT) - 1)

    def test_bodies_that_are_refused(self, kind: int, library: str) -> None:
        raw = compressed(TEXT, kind)
        for wrong in (b"", b"no stream at all", raw[:5], raw[: len(raw) // 2], raw[:-1]):
            with pytest.raises(FormatError, match="compressed body"):
                inflated(wrong, kind | 1)


def test_gzip_is_decompressed_under_the_flag_of_zlib() -> None:
    """RocketMQ's proxy stores the gzip of gRPC clients so."""
    assert inflated(gzip.compress(TEXT), 1) == TEXT
    with pytest.raises(FormatError, match="cut off"):
        inflated(gzip.compress(TEXT)[:-1], 1)


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(FormatError, match="method 5 is unknown"):
        inflated(b"", 0x501)
