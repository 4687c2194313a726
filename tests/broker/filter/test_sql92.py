"""The SQL92 filter: valid and invalid expressions, and matching messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.filter.kept_bytes import kept_bytes

from firetrail.broker.filter.sql92 import LENGTH_MAX, PARSED_MAX, TERMS_MAX, parse
from firetrail.errors import FormatError

PROPERTIES = {"a": "5", "b": "text", "c": "true", "d": "2.5", "e": "it's", "TAGS": "T"}


@pytest.mark.parametrize(
    "text",
    [
        "a = 5",
        "a > 4",
        "a >= 5 AND a <= 5",
        "a < 5.5",
        "5 = a",
        "a <> 6",
        "a != 6",
        "d > -1.0",
        "d = 2.5",
        "d < 1e3",
        "b = 'text'",
        "b <> 'other'",
        "e = 'it''s'",
        "b IN ('x', 'text')",
        "b NOT IN ('x', 'y')",
        "a BETWEEN 5 AND 6",
        "a NOT BETWEEN 6 AND 7",
        "missing IS NULL",
        "a IS NOT NULL",
        "c = TRUE",
        "NOT c = FALSE",
        "NOT NOT c = TRUE",
        "NOT c",  # text is not true
        "a > 9 OR b = 'text'",
        "(a > 9 OR b = 'text') AND c = true",
        "a = 5 and b = 'text' or missing = 1",
        "missing = 1 OR a = 5",
        "b CONTAINS 'ex'",
        "b STARTSWITH 'te'",
        "b NOT ENDSWITH 'te'",
        "TAGS is not null and TAGS in ('T')",
    ],
)
def test_the_message_matches(text: str) -> None:
    assert parse(text).matches(PROPERTIES)


@pytest.mark.parametrize(
    "text",
    [
        "a = 6",
        "a > 5",
        "b = 5",  # not a number
        "d > 2",  # not a whole number
        "a = 5.0 AND d > 2",
        "b > 5",
        "a = '6'",
        "missing = 1",
        "missing <> 1",  # neither equal nor not equal
        "NOT missing = 1",
        "missing > 1 OR a > 9",
        "missing IN ('x')",
        "missing NOT IN ('x')",
        "missing BETWEEN 1 AND 2",
        "a IS NULL",
        "a BETWEEN 6 AND 7",
        "c = FALSE",
        "a",  # not a truth value
        "c",
        "c AND a = 5",
        "NULL",
        "a = NULL",
        "missing CONTAINS 'x'",
        "a = 5 AND missing = 1",
    ],
)
def test_the_message_does_not_match(text: str) -> None:
    assert not parse(text).matches(PROPERTIES)


WHOLE = {"5": 5, "+5": 5, "-5": -5, "05": 5, "2147483647": 2**31 - 1}
LONG = {"2147483648": 2**31, "9223372036854775807": 2**63 - 1}
DOUBLE = {
    "5.0": 5,
    "5.": 5,
    "5e0": 5,
    ".5e1": 5,
    " 5 ": 5,
    "\t5\n": 5,
    "5d": 5,
    "5F": 5,
    "-5.5": -5.5,
}
DOUBLE |= {"Infinity": float("inf"), "-Infinity": float("-inf"), "1e400": float("inf")}
NOT_NUMBERS = [
    "1_0",
    "inf",
    "infinity",
    "nan",
    "NaN",
    "5L",
    "5 0",
    "0x5",
    "\u0665",
    "\xa05",
    "text",
]


@pytest.mark.parametrize(
    ("number", "accepted"),
    [("0", WHOLE), ("0L", WHOLE), ("3000000000", WHOLE | LONG), ("0.1", WHOLE | LONG | DOUBLE)],
)
def test_a_property_becomes_a_number_of_the_type_that_it_is_compared_with(
    number: str, accepted: dict[str, float]
) -> None:
    """The expectations were read off the filter of RocketMQ 4.9.7 and 5.5.0."""
    for value in [*WHOLE, *LONG, *DOUBLE, *NOT_NUMBERS]:
        found = [parse(f"a {sign} {number}").matches({"a": value}) for sign in ("<", "=", ">")]
        limit = float(number.rstrip("L"))
        expected = accepted.get(value)
        assert found == [
            expected is not None and each
            for each in ((expected or 0) < limit, expected == limit, (expected or 0) > limit)
        ], value


def test_two_properties_are_ordered_as_numbers_with_a_fraction() -> None:
    assert parse("a < b").matches({"a": " 9", "b": "10.5"})
    assert not parse("a < b").matches({"a": "9", "b": "1_0"})
    assert not parse("a = b").matches({"a": "5", "b": "5.0"})  # equality is that of text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a =",
        "a = = 1",
        "a > 'text'",
        "a > TRUE",
        "a IN (1, 2)",
        "a > 9223372036854775808",
        "a > 1e400",
        "a IN ()",
        "a BETWEEN 1",
        "(a = 1",
        "a = 1)",
        "a = 1 b = 2",
        "a IS 5",
        "a NOT = 5",
        "b CONTAINS 5",
        "a = 'open",
        "a ~ 1",
        "AND",
        "-a > 1",
        "(" * 100 + "a" + ")" * 100,
        "a = 1 OR " * 2000 + "a = 1",
    ],
)
def test_a_mistake_is_refused_with_its_position(text: str) -> None:
    with pytest.raises(FormatError, match="SQL92 filter at offset"):
        parse(text)


@given(st.text(alphabet="ab='<>() .,-15ANDORNOTINISULL\x00é", max_size=60))
def test_any_text_is_a_filter_or_a_format_error(text: str) -> None:
    try:
        found = parse(text)
    except FormatError:
        return
    assert found.matches(PROPERTIES) in (True, False)


class TestCost:
    def test_an_expression_has_a_limited_number_of_predicates(self) -> None:
        most = " OR ".join(["a = 1"] * TERMS_MAX)
        assert parse(most).terms == TERMS_MAX
        with pytest.raises(FormatError, match=f"has more than {TERMS_MAX} predicates"):
            parse(f"{most} OR b = 1")

    def test_a_list_is_one_predicate(self) -> None:
        values = ", ".join(f"'{number}'" for number in range(500))
        assert parse(f"a IN ({values})").terms == 1

    def test_a_number_has_a_limited_length(self) -> None:
        with pytest.raises(FormatError, match="number of more than 40 characters"):
            parse(f"a > {'9' * 5000}")

    def test_a_limited_number_of_filters_is_kept(self) -> None:
        parse.cache_clear()
        for number in range(PARSED_MAX + 10):
            parse(f"a = {number}")
        assert parse.cache_info().currsize == PARSED_MAX == 256
        for number in (0, PARSED_MAX + 9):  # the oldest has made room, the newest is there
            parse(f"a = {number}")
        assert parse.cache_info().hits == 1

    @pytest.mark.parametrize("most", ["list", "predicates"])
    def test_kept_filters_have_a_limited_size(self, most: str) -> None:
        def parse_one(number: int) -> None:
            values = [f"'{chr(0x4E00 + number + each)}'" for each in range(2040)]
            lists = [",".join(values[first::128][:11]) for first in range(128)]
            predicates = " OR ".join(f"a IN ({each})" for each in lists)
            text = f"a IN ({','.join(values)})" if most == "list" else predicates
            assert LENGTH_MAX // 2 < len(text) <= LENGTH_MAX
            parse(text)

        parse.cache_clear()
        sample = 4
        assert kept_bytes(parse_one, sample) * PARSED_MAX // sample < 80 << 20
        parse.cache_clear()
