"""Truth values as text: ``true`` and ``false``."""

_USUAL_FIELDS = {"false": False, "true": True, "0": False, "1": True}


def is_true(text: str | None) -> bool:
    """Return the value of a text by the rule of Java's ``Boolean.parseBoolean``.

    Any other text than ``true``, in capital or small letters, is false.
    """
    return text == "true" or (text is not None and text.lower() == "true")


def truth_in(text: str) -> bool | None:
    """Return the value of a text that should be ``true`` or ``false``; None if it is neither."""
    return {"true": True, "false": False}.get(text.lower())


def is_true_field(text: str | None) -> bool:
    """Return the value of a field of a request: clients in C++ write 1 for true.

    In RocketMQ, 1 is false, and a batch of such a client is stored as one message.
    """
    usual = _USUAL_FIELDS.get(text) if text is not None else False
    return is_true(text) if usual is None else usual


def truth_of_peer(value: object) -> bool | None:
    """Return the value that a peer wrote as JSON; None if it is not a truth value.

    As in RocketMQ's libraries for JSON, it may also be 1 or 0, or text.
    """
    if isinstance(value, bool):
        return value
    if type(value) is int:
        return {1: True, 0: False}.get(value)
    if not isinstance(value, str):
        return None
    return truth_in({"1": "true", "0": "false"}.get(value, value))


def truth_text(value: bool) -> str:
    """Return the text of a value."""
    return "true" if value else "false"
