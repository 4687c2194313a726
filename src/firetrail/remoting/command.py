"""A command: what one side says to the other, request or response.

``fields`` are the header's own fields (``extFields``); a value is always text, whatever a peer has
sent. The body is bytes, or several pieces that stand for their concatenation: slices of the log
are sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firetrail.remoting.codes import CommandFlag, Language, ResponseCode, Serialize, Version

# Plain numbers: an enum's operators take longer than all else that is done with a flag.
_RESPONSE, _ONE_WAY = int(CommandFlag.RESPONSE), int(CommandFlag.ONE_WAY)

Body = bytes | memoryview | Sequence[bytes | memoryview]


@dataclass(slots=True)
class Command:
    """A request or a response."""

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: Body = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: int = Language.JAVA
    version: int = Version.V4_9_8
    serialize: Serialize = Serialize.JSON

    @property
    def is_response(self) -> bool:
        """Whether it answers the request with the same ``opaque``."""
        return self.flag & _RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether it must not be answered."""
        return self.flag & _ONE_WAY != 0

    @property
    def content(self) -> bytes:
        """The body in one piece."""
        body = self.body
        return bytes(body) if isinstance(body, bytes | memoryview) else b"".join(body)

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: Body = b"",
    ) -> Command:
        """The response to this request: with its number, and written as it was written."""
        return Command(
            code,
            fields if fields is not None else {},
            body,
            remark,
            self.opaque,
            _RESPONSE,
            serialize=self.serialize,
        )
