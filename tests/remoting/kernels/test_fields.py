"""Decoding of typed headers from text."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.remoting.kernels.fields import BOOL, INT32, INT64, TEXT, fill_header


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    count: int
    offset: int
    quick: bool = False


PLAN = (
    ("name", "n", TEXT, True, None),
    ("count", "c", INT32, False, 7),
    ("offset", "o", INT64, False, None),
    ("quick", "q", BOOL, False, False),
)


def fill(wire: dict[str, str]) -> tuple[Any, ...] | None:
    header = Header.__new__(Header)
    if not fill_header(header, PLAN, wire):
        return None
    return header.name, header.count, header.offset, header.quick


def test_missing_fields_get_their_defaults() -> None:
    assert fill({"n": "x"}) == ("x", 7, None, False)


def test_a_missing_required_field_is_reported() -> None:
    assert fill({"c": "1"}) is None


@given(st.text(), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_fields_of_every_kind_are_set(name: str, count: int, offset: int) -> None:
    wire = {"n": name, "c": str(count), "o": str(offset), "q": "true", "more": "x"}
    assert fill(wire) == (name, count, offset, True)


@pytest.mark.parametrize("text", ["1", "true", "True", "TRUE"])
def test_the_texts_true_and_1_mean_true(text: str) -> None:
    assert fill({"n": "x", "q": text}) == ("x", 7, None, True)


def test_other_texts_mean_false() -> None:
    assert fill({"n": "x", "q": "yes"}) == ("x", 7, None, False)


@pytest.mark.parametrize(
    "wire", [{"c": "2147483648"}, {"c": "-2147483649"}, {"o": str(2**63)}, {"c": "x"}, {"o": ""}]
)
def test_invalid_numbers_are_reported(wire: dict[str, str]) -> None:
    assert fill({"n": "x"} | wire) is None
