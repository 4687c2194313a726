"""The names of users in client certificates."""

import pytest

from firetrail.tls.user_names import UserNames

CERTIFICATE = {
    "subject": ((("organizationName", "x"),), (("commonName", "alice"),)),
    "subjectAltName": (
        ("DNS", "alice.users.example.org"),
        ("IP Address", "127.0.0.1"),
        ("email", "alice@example.org"),
        ("URI", "spiffe://example.org/user/al"),
    ),
}


@pytest.mark.parametrize(
    ("patterns", "user"),
    [
        ("CN:*", "alice"),
        ("CN:alice", "alice"),
        ("CN:ali", None),
        ("DNS:*.users.example.org", "alice"),
        ("DNS:*.example.com CN:a*e", "lic"),
        ("EMAIL:*", "alice@example.org"),
        ("URI:spiffe://example.org/user/* CN:*", "al"),
        ("URI:*", None),  # a user has no slash in its name
        ("CN:alice*", None),  # nor is it empty
        ("CN:alice*alice", None),
        ("", None),
    ],
)
def test_the_first_pattern_that_matches_counts(patterns: str, user: str | None) -> None:
    assert UserNames.parse(patterns).user_of(CERTIFICATE) == user


def test_a_certificate_without_names_has_no_user() -> None:
    assert UserNames.parse("CN:*").user_of({}) is None


@pytest.mark.parametrize("second", ["bob", "alice", "a host", ""])
@pytest.mark.parametrize("patterns", ["CN:*", "CN:alice", "DNS:* CN:*"])
def test_a_certificate_with_two_common_names_has_no_user(patterns: str, second: str) -> None:
    names = (("commonName", "alice"),), (("commonName", second),)
    for subject in (names, names[::-1]):
        certificate = {"subject": subject, "subjectAltName": (("DNS", "alice"),)}
        assert UserNames.parse(patterns).user_of(certificate) is None


def test_a_pattern_that_selects_two_users_selects_none() -> None:
    alternatives = (("DNS", "alice.users"), ("DNS", "bob.users"), ("DNS", "host.example"))
    certificate = {"subject": ((("commonName", "carol"),),), "subjectAltName": alternatives}
    for patterns, user in (
        ("DNS:*.users CN:*", None),
        ("DNS:alice.users", "alice.users"),
        ("DNS:*.example CN:*", "host"),
        ("CN:* DNS:*.users", "carol"),
    ):
        assert UserNames.parse(patterns).user_of(certificate) == user


@pytest.mark.parametrize("name", ["a b", "a\nb", "", "x" * 65, "User:a"])
def test_names_that_could_confuse_are_not_taken(name: str) -> None:
    certificate = {"subject": ((("commonName", name),),)}
    assert UserNames.parse("CN:*").user_of(certificate) is None


@pytest.mark.parametrize("text", ["*", "CN", "CN:", "XX:*", "CN:*a*", "CN:* " * 65])
def test_other_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        UserNames.parse(text)
