"""The ``.properties`` syntax; the cases were checked against ``java.util.Properties`` of JDK 17."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import ConfigError
from firetrail.format.files.java_properties import parse_properties, update_properties


def parsed(text: str) -> dict[str, str]:
    return {key: entry.text for key, entry in parse_properties(text).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a \t = \f 1 2 ", {"a": "1 2 "}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a==1", {"a": "=1"}),
        ("alone", {"alone": ""}),
        ("=1", {"": "1"}),
        ("# a=1\n ! b=2\n#c=3\\\nd=4", {"d": "4"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=1\nb=2\na=3", {"a": "3", "b": "2"}),
        ("a=1\r\nb=2\rc=3\n\nd=4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a=1\\\n   2", {"a": "12"}),
        ("a=1\\\n# 2", {"a": "1# 2"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("\\\n#a=1\nb=2", {"b": "2"}),
        (r"a\ b\=c\:d = 1", {"a b=c:d": "1"}),
        (r"a=\t\n\r\f\x\\", {"a": "\t\n\r\fx\\"}),
        (r"a=\u0041\u4e2d\ud83d\ude00", {"a": "A中\U0001f600"}),
        ("a=1\x0b\x852\u2028", {"a": "1\x0b\x852\u2028"}),
        ("\ufeffa=1\n\ufeffb=2", {"a": "1", "\ufeffb": "2"}),  # unlike Java
        ("\ufeff# a=1", {}),
    ],
)
def test_the_syntax_of_java_properties_is_read(text: str, expected: dict[str, str]) -> None:
    assert parsed(text) == expected


def test_entries_say_where_they_stand() -> None:
    entries = parse_properties("# first\na=1\\\n2\n\nb=3", "broker.conf")
    assert {key: entry.place for key, entry in entries.items()} == {
        "a": "broker.conf line 2: ",
        "b": "broker.conf line 5: ",
    }
    assert parse_properties("a=1")["a"].place == "line 1: "


def test_a_broken_unicode_escape_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"line 2: .*four hexadecimal digits"):
        parse_properties("a=1\nb=C:\\users")


def test_half_a_character_is_replaced() -> None:
    assert parsed(r"a=\ud83d!") == {"a": "\ufffd!"}


def escaped(text: str) -> str:
    """``text`` with every character that means something to the syntax written as an escape."""
    return "".join(c if c.isalnum() and c.isascii() else escape(c) for c in text)


def escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


@given(st.dictionaries(st.text(min_size=1), st.text()), st.sampled_from(["=", ":", " ", " = "]))
def test_what_is_escaped_comes_back(pairs: dict[str, str], separator: str) -> None:
    lines = [f"{escaped(key)}{separator}{escaped(value)}" for key, value in pairs.items()]
    assert parsed("\n".join(lines)) == pairs


@given(st.text(alphabet="ab=: \t\f\n\r\\#!ud08"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed(text)
    except ConfigError:
        assert "\\u" in text


class TestUpdate:
    def test_keeps_all_else(self) -> None:
        text = "# about a\r\na = 1\r\n\r\nb=2\r\n"
        assert update_properties(text, {"a": "x"}) == "# about a\r\na=x\r\n\r\nb=2\r\n"

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", "k=v\n"),
            ("a=1", "a=1\nk=v\n"),
            ("a=1\n\n\n", "a=1\nk=v\n"),
            ("k=1\\\n  2\na=1\n", "k=v\na=1\n"),
            ("k=1\na=1\nk: 2\n", "a=1\nk=v\n"),
            ("old=1\na=1\n", "a=1\nk=v\n"),
            ("#k=1\n", "#k=1\nk=v\n"),
            ("\\u006b=1\n", "k=v\n"),
            ("\ufeffk=1\n", "\ufeffk=v\n"),
            ("\ufeffold=1\na=1\n", "\ufeffa=1\nk=v\n"),
        ],
    )
    def test_replaces_or_appends(self, text: str, expected: str) -> None:
        assert update_properties(text, {"k": "v"}, ["old"]) == expected

    @given(st.text(), st.text(max_size=20))
    def test_is_read_back(self, text: str, value: str) -> None:
        try:
            before = parse_properties(text)
        except ConfigError:
            return
        after = parse_properties(update_properties(text, {"key": value.strip()}))
        assert after.pop("key").text == value.strip().lstrip(" \t\f")
        before.pop("key", None)
        assert {k: v.text for k, v in after.items()} == {k: v.text for k, v in before.items()}
