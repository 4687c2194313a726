"""Truth values as text: ``true`` and ``false``."""


def is_true(text: str | None) -> bool:
    """Return the value of a text by the rule of Java's ``Boolean.parseBoolean``.

    Any other text than ``true``, in capital or small letters, is false.
    """
    return text == "true" or (text is not None and text.lower() == "true")


def truth_in(text: str) -> bool | None:
    """Return the value of a text that should be ``true`` or ``false``; None if it is neither."""
    return {"true": True, "false": False}.get(text.lower())


def truth_text(value: bool) -> str:
    """Return the text of a value."""
    return "true" if value else "false"
