"""Messages as consumers get them, and what they want."""

from __future__ import annotations

import pytest

from firetrail.client.subscription import by_sql, by_tags
from firetrail.format.javahash import java_hash


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
