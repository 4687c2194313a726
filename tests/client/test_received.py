"""Messages as consumers get them, and what they want."""

from __future__ import annotations

import zlib

import pytest

from firetrail.client.received import inflated
from firetrail.client.subscription import by_sql, by_tags
from firetrail.errors import FormatError
from firetrail.format.javahash import java_hash


class TestCompressedBodies:
    @pytest.mark.parametrize("sys_flag", [0x1, 0x301])
    def test_zlib(self, sys_flag: int) -> None:
        assert inflated(zlib.compress(b"x" * 1000), sys_flag) == b"x" * 1000

    @pytest.mark.parametrize(("sys_flag", "name"), [(0x101, "LZ4"), (0x201, "zstd")])
    def test_others(self, sys_flag: int, name: str) -> None:
        with pytest.raises(FormatError, match=name):
            inflated(b"", sys_flag)

    def test_damage(self) -> None:
        with pytest.raises(FormatError, match="take record"):
            inflated(b"no stream", 1)
        with pytest.raises(FormatError, match="cut off"):
            inflated(zlib.compress(b"x" * 1000)[:-5], 1)

    def test_a_bomb(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("firetrail.client.received.INFLATED_MAX", 100)
        with pytest.raises(FormatError, match="more than 100 bytes"):
            inflated(zlib.compress(bytes(1000)), 1)


class TestSubscriptions:
    def test_tags(self) -> None:
        wanted = by_tags("T", " a ||b|| ")
        assert wanted.tags_set == ["a", "b"]
        assert wanted.code_set == [java_hash("a"), java_hash("b")]

    @pytest.mark.parametrize("expression", ["*", "", "a || *"])
    def test_all(self, expression: str) -> None:
        wanted = by_tags("T", expression)
        assert (wanted.sub_string, wanted.tags_set, wanted.code_set) == ("*", [], [])

    def test_sql(self) -> None:
        wanted = by_sql("T", "a > 1")
        assert (wanted.sub_string, wanted.expression_type) == ("a > 1", "SQL92")
