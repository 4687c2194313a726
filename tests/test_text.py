"""Counts, lists of names and suggestions as text."""

import pytest

from firetrail.text import counted, did_you_mean, human_duration, printable, some_of, typo_of


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (1, "entry", "1 entry"),
        (3, "day", "3 days"),
        (2, "entry", "2 entries"),
    ],
)
def test_a_count_has_its_plural(number: int, thing: str, text: str) -> None:
    assert counted(number, thing) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (90, "90 seconds"),
        (5400, "90 minutes"),
        (3600, "1 hour"),
        (259_200, "3 days"),
    ],
)
def test_durations_are_shown_in_the_largest_unit_that_fits(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


def test_a_long_list_names_five_and_counts_the_others() -> None:
    assert some_of([]) == ""
    assert some_of(["a", "b"]) == "a, b"
    assert some_of(range(5)) == "0, 1, 2, 3, 4"
    assert some_of(range(8)) == "0, 1, 2, 3, 4 and 3 more"


def test_the_nearest_name_is_suggested_whatever_its_case() -> None:
    names = ["Orders", "Parcels", "payments"]
    assert did_you_mean("parcel", names) == "; did you mean Parcels?"
    assert did_you_mean("PAYMENT", names) == "; did you mean payments?"
    assert did_you_mean("customers", names) == ""
    assert did_you_mean("orders", []) == ""


def test_what_is_not_visible_is_escaped() -> None:
    assert printable("a b\u00e4\u20ac") == "a b\u00e4\u20ac"
    assert printable("a\nb\x7f\x85") == r"a\nb\x7f\x85"
    assert printable("\u202e\u2066\u200b\ufeff\U000e0041") == (
        r"\u202e\u2066\u200b\ufeff\U000e0041"
    )
    assert printable("\u2028\ud800") == r"\u2028\ud800"
    assert printable("abc", 2) == "ab…"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("flushdisktype", "flushDiskType"),
        ("flsuhDiskType", "flushDiskType"),
        ("flashDiskTypes", "flushDiskType"),
        ("flushDisk", ""),
        ("bins", "bind"),
        ("bits", ""),
        ("", ""),
    ],
)
def test_misspelt_names(name: str, meant: str) -> None:
    assert typo_of(name, ["flushDiskType", "bind"]) == meant
