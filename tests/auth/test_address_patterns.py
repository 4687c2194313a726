"""The address patterns of ACL 1.0: what each form matches, and what is not a pattern."""

import pytest

from firetrail.auth.address_patterns import AddressPattern
from firetrail.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", "", "127.0.0.1 ::1"),
        ("*", "127.0.0.1 ::1 10.0.0.1", ""),
        ("*.*.*.*", "127.0.0.1 ::1", ""),
        ("*:*:*:*:*:*:*:*", "127.0.0.1 ::1", ""),
        ("192.168.0.{1,2,3}", "192.168.0.1 192.168.0.3", "192.168.0.4 192.168.1.1"),
        ("1050::5:600:{a,b}", "1050::5:600:a 1050::5:600:B", "1050::5:600:c"),
        ("1.2.3.4, ::1,1.2.3.5", "1.2.3.4 1.2.3.5 ::1", "1.2.3.6 ::2"),
        ("192.168.*.*", "192.168.0.0 192.168.255.255", "192.169.0.0 192.167.255.255"),
        ("192.168.*", "192.168.0.0 192.168.255.255", "192.169.0.0"),
        ("192.168.3-9.*", "192.168.3.0 192.168.9.255", "192.168.2.255 192.168.10.0"),
        ("192.168.*.5", "192.168.1.6", "192.1.1.5"),
        ("192.168.1.10-20", "192.168.1.10 192.168.1.20", "192.168.1.9 192.168.1.21"),
        ("1050::0005:*", "1050::5:0 1050::5:ffff", "1050::6:0 1050::4:ffff"),
        ("1050::5:1-200", "1050::5:1 1050::5:200", "1050::5:0 1050::5:201"),
        ("1050::5:1-200:*", "1050::5:1:0 1050::5:200:ffff", "1050::5:0:ffff 1050::5:201:0"),
        ("1050:0:0:0:0:0:5:*", "1050::5:7", "1050::6:7"),
        ("127.0.0.1", "127.0.0.1 ::ffff:127.0.0.1", "127.0.0.2 ::1"),
        ("::1", "::1 0:0:0:0:0:0:0:1", "::2"),
    ],
)
def test_every_form_matches_its_addresses_only(pattern: str, inside: str, outside: str) -> None:
    found = AddressPattern.parse(f" {pattern} ")
    assert found.text == pattern
    assert [each for each in inside.split() if not found.matches(each)] == []
    assert [each for each in outside.split() if found.matches(each)] == []
    if found.ranges is not None:
        assert not found.matches("")
        assert not found.matches("no address")


@pytest.mark.parametrize(
    "text",
    [
        "localhost", "10.0.0.0/8", "1.2.3", "1.2.3.4.5", "*.1.2.3", "1-2.3.4.5", "1.2.3.4-", "-",
        "1.2.3.9-8", "1.2.3.1-256", "1.2.3.{}", "1.2.3.{1,x}", "{1,2}", "1.2.3.{1,2}5", "1.2.3.4,",
        "::*:1:2:3:4:5:6:7", "1::2::*", "::1-fffff", "1.*.x.1", "a" * 2000,
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be an address, or a pattern"):
        AddressPattern.parse(text)
