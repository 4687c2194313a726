"""A command: a request or a response.

``fields`` are the fields of the typed header (``extFields``). Their values are always text, even if
a peer has sent another JSON type. The body is bytes, or several pieces that are sent one after the
other without copying, such as slices of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firetrail.auth.caller import Caller
from firetrail.auth.resources import Requirement
from firetrail.remoting.wire.codes import CommandFlag, Language, ResponseCode, Serialize, Version

# Plain numbers, because the operators of enums are slow.
_RESPONSE, _ONE_WAY = int(CommandFlag.RESPONSE), int(CommandFlag.ONE_WAY)

Payload = bytes | memoryview | Sequence[bytes | memoryview]


@dataclass(slots=True)
class RemotingCommand:
    """A request or a response."""

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: Payload = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: int = Language.JAVA
    version: int = Version.V4_9_8
    serialize: Serialize = Serialize.JSON
    size: int = field(default=0, compare=False, repr=False)
    """Bytes of the frame that it arrived in."""
    caller: Caller | None = field(default=None, compare=False, repr=False)
    """The sender of a request, if the server checks it; None for requests of this process."""
    expires_at: float | None = field(default=None, compare=False, repr=False)
    """Time of the event loop until which a request may wait for a master; None if it has not."""

    @property
    def is_response(self) -> bool:
        """Whether the command is the response to the request with the same ``opaque``."""
        return self.flag & _RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether the command is a request that must not be answered."""
        return self.flag & _ONE_WAY != 0

    @property
    def content(self) -> bytes:
        """The body in one piece."""
        body = self.body
        return bytes(body) if isinstance(body, bytes | memoryview) else b"".join(body)

    def require(self, *needs: Requirement) -> None:
        """Raise RequestError if the sender lacks a permission that the handler requires."""
        if self.caller is not None:
            self.caller.require(*needs)

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: Payload = b"",
    ) -> RemotingCommand:
        """Return a response to this request, with its number and its header encoding."""
        return RemotingCommand(
            code,
            fields if fields is not None else {},
            body,
            remark,
            self.opaque,
            _RESPONSE,
            serialize=self.serialize,
        )
