"""The headers of requests, and their rules."""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

COMPILED = cython.compiled

_DIGITS_MAX = cython.declare(cython.Py_ssize_t, 19)
_SINGLE = frozenset({"content-length", "te"})
"""Names of headers whose values must be the same if they are repeated (RFC 9113, 8.1.1, 8.2.2)."""


class MalformedError(Exception):
    """The headers of a request violate the rules of HTTP/2."""


@cython.cclass
class RequestHead:
    """The headers of a request.

    Attributes:
        method: The method of HTTP.
        scheme: ``http`` or ``https``.
        path: The path, which is not empty.
        authority: Host and port as the client named them.
        fields: The other headers; a repeated name has its last value. Those that must not have
            several values have one.
        content_length: The bytes of data that the client announced, None if it did not.
        size: Bytes of the compressed headers; what refers to the table of the connection takes few.
    """

    method = cython.declare(str, visibility="public")
    scheme = cython.declare(str, visibility="public")
    path = cython.declare(str, visibility="public")
    authority = cython.declare(str, visibility="public")
    fields = cython.declare(dict, visibility="public")
    content_length = cython.declare(object, visibility="public")
    size = cython.declare(cython.Py_ssize_t, visibility="public")

    def __init__(self) -> None:
        self.method = self.scheme = self.path = self.authority = ""
        self.fields = {}
        self.content_length = None
        self.size = 0


def request_head(decoded: list[tuple[str, str, int]]) -> RequestHead:
    """Check the headers of a request; raise MalformedError if they break a rule."""
    head = RequestHead()
    others: dict[str, str] = head.fields
    field: tuple[str, str, int]
    name: str
    value: str
    method: str | None = None
    scheme: str | None = None
    path: str | None = None
    authority: str | None = None
    regular: cython.Py_ssize_t = 0
    for field in decoded:
        name = field[0]
        value = field[1]
        if not name.startswith(":"):
            others[name] = value
            regular += 1
        elif others:
            raise MalformedError
        elif name == ":method" and method is None:
            method = value
        elif name == ":scheme" and scheme is None:
            scheme = value
        elif name == ":path" and path is None:
            path = value
        elif name == ":authority" and authority is None:
            authority = value
        else:
            raise MalformedError
    if regular != len(others):
        _check_repeated(decoded)
    if method is None or scheme is None or not path or not _are_allowed(others):
        raise MalformedError
    head.method = method
    head.scheme = scheme
    head.path = path
    head.authority = authority or others.get("host", "")
    head.content_length = _content_length(others)
    return head


def _check_repeated(decoded: list[tuple[str, str, int]]) -> None:
    values: dict[str, str] = {}
    for name, value, _ in decoded:
        if name in _SINGLE and values.setdefault(name, value) != value:
            raise MalformedError


def check_trailers(decoded: list[tuple[str, str, int]]) -> None:
    """Raise MalformedError if the fields after the data of a request break a rule."""
    for name, _, _ in decoded:
        if not name or name.startswith(":"):
            raise MalformedError


@cython.cfunc
def _are_allowed(fields: dict[str, str]) -> cython.bint:
    """Whether the decoder has found all fields legal, and none is about the connection only."""
    return (
        "" not in fields
        and "connection" not in fields
        and "keep-alive" not in fields
        and "proxy-connection" not in fields
        and "transfer-encoding" not in fields
        and "upgrade" not in fields
        and fields.get("te", "trailers") == "trailers"
    )


@cython.cfunc
def _content_length(fields: dict[str, str]) -> Any:
    text: Any = fields.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise MalformedError
    return int(text)
