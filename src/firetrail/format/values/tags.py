"""Lists of tags, by which consumers select messages: ``"A || B"``."""

from firetrail.errors import ConfigError

ALL_TAGS = "*"
"""All messages, also those without a tag."""
_SEPARATOR = "||"
_BLANKS = "".join(map(chr, range(ord(" ") + 1)))
"""The characters that Java's ``trim`` removes; others, such as a wide space, belong to a tag."""


def tags_in(expression: str, name: str = "tags") -> tuple[str, ...] | None:
    """Return the tags in an expression, each once; None if it selects all messages.

    An expression without text, or with ``*`` among its tags, selects all. Empty items are ignored.

    Args:
        expression: The expression.
        name: The name of the expression in the error.

    Raises:
        ConfigError: The expression has separators but no tag.
    """
    tags = tuple(dict.fromkeys(filter(None, map(trimmed, expression.split(_SEPARATOR)))))
    if ALL_TAGS in tags or not trimmed(expression):
        return None
    if not tags:
        raise ConfigError(name, expression, f"contains no tag; use {ALL_TAGS!r} for all messages")
    return tags


def trimmed(tag: str) -> str:
    """Return a tag without the blanks around it, which no consumer could select."""
    return tag.strip(_BLANKS)
