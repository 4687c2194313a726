"""The names of users in client certificates.

A certificate names its holder in the common name of its subject (``CN``), and in its alternative
names: ``DNS``, ``EMAIL`` and ``URI``. Ordered patterns select one of these names::

    URI:spiffe://example.org/user/*  CN:*

A pattern is a kind of name, a colon, and a text with at most one asterisk. The part of the name at
the asterisk is the name of the user. Without an asterisk, it is the whole name. The first pattern
that matches a name of the certificate counts.

An ambiguous certificate names no user, with any patterns: one with several common names, or
one of which a pattern selects several users.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from firetrail.format.names import USER_NAME

KINDS = ("CN", "DNS", "EMAIL", "URI")
PATTERNS_MAX = 64
"""Maximum number of patterns: a certificate is compared with all of them once per connection."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """One pattern: the kind of name, and the text before and after the name of the user."""

    kind: str
    before: str
    after: str
    has_asterisk: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern; raise ValueError with the reason."""
        kind, colon, pattern = text.partition(":")
        if kind not in KINDS or not colon or not pattern or pattern.count("*") > 1:
            raise ValueError(
                f"{text!r} is not a pattern: write {', '.join(KINDS[:-1])} or {KINDS[-1]}, a "
                "colon, and a text with at most one asterisk, such as CN:* or "
                "DNS:*.users.example.org"
            )
        before, asterisk, after = pattern.partition("*")
        return cls(kind, before, after, bool(asterisk))

    def user_of(self, name: str) -> str | None:
        """Return the user of a name; None if the pattern does not match."""
        if not self.has_asterisk:
            user = name if name == self.before else ""
        elif name.startswith(self.before) and name.endswith(self.after):
            user = name[len(self.before) : len(name) - len(self.after)]
        else:
            user = ""
        return user if USER_NAME.fullmatch(user) else None


@dataclass(frozen=True, slots=True)
class UserNames:
    """Patterns in their order."""

    patterns: tuple[NamePattern, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse patterns that are separated by spaces; raise ValueError with the reason.

        Without patterns, no certificate names a user.
        """
        words = text.split()
        if len(words) > PATTERNS_MAX:
            raise ValueError(f"there must be at most {PATTERNS_MAX} patterns, separated by spaces")
        return cls(tuple(NamePattern.parse(word) for word in words))

    def user_of(self, certificate: Mapping[str, Any]) -> str | None:
        """Return the user that a certificate names; None if it names none, or is ambiguous.

        Args:
            certificate: A verified certificate, as :meth:`ssl.SSLSocket.getpeercert` returns it.
        """
        names = list(_names(certificate))
        if sum(kind == "CN" for kind, _ in names) > 1:
            return None
        for pattern in self.patterns:
            users = {pattern.user_of(name) for kind, name in names if kind == pattern.kind}
            users.discard(None)
            if users:
                return users.pop() if len(users) == 1 else None
        return None


def _names(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                yield "CN", value
    for kind, value in certificate.get("subjectAltName", ()):
        if isinstance(value, str):
            yield kind.upper(), value
