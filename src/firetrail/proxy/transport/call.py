"""The contract between the transport of calls and the code that answers them.

The transport takes a table of methods and passes each call to its method. A handler that raises
:class:`GrpcError` ends the call with that status. Any other exception is logged, and the client
receives INTERNAL. If the client cancels a call, is lost, or its deadline passes, then the awaitable
that the handler returned is cancelled.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from firetrail.auth.caller import Caller
from firetrail.errors import GrpcError

__all__ = [
    "Call",
    "GrpcError",
    "HandleAll",
    "Method",
    "Methods",
    "ProtobufMessage",
    "ResponseMessage",
    "ResponseStreamMethod",
    "StatusCode",
    "Stream",
    "StreamHandler",
    "StreamMethod",
    "UnaryMethod",
]


class StatusCode(IntEnum):
    """The status of an ended call, in the numbers of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class ResponseMessage(Protocol):
    """A response, as the transport sees it."""

    def SerializeToString(self) -> bytes:
        """Return the encoded message."""


class ProtobufMessage(ResponseMessage, Protocol):
    """A protobuf message, as the transport sees it: all that it knows about protobuf."""

    def ByteSize(self) -> int:
        """Return the size of the encoded message."""

    @classmethod
    def FromString(cls, data: bytes) -> Any:
        """Decode a message.

        Raises:
            DecodeError: The bytes are not a message of this type.
            UnicodeDecodeError: A text is not UTF-8, if protobuf runs in pure Python.
        """


class Call(Protocol):
    """One call of a client, over any transport.

    Attributes:
        caller: The one who makes the call; None before the check, or without access control.
    """

    caller: Caller | None

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata that the client sent, by name in lower case.

        A repeated name has its last value. Values of names that end in ``-bin`` are Base64.
        """

    @property
    def peer(self) -> str:
        """Address of the client, ``ip:port``."""

    @property
    def local(self) -> str:
        """Address that the client connected to, ``ip:port``."""

    @property
    def certificate_user(self) -> str | None:
        """The user that the verified certificate of the client names; None if there is none."""

    @property
    def is_encrypted(self) -> bool:
        """Whether the client uses TLS."""

    @property
    def authority(self) -> str:
        """Host and port as the client named them, such as ``broker.example:8081``."""

    def is_too_fast(self, request: ProtobufMessage) -> bool:
        """Count a message of the client; return whether its address sends more than it may.

        A message that is too much does not count, and is to be refused.
        """

    def accept(self) -> None:
        """Note that the call is allowed: its client is not a stranger from now on."""

    def remaining_s(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None if the call has no deadline."""

    def when_done(self, callback: Callable[[bool], None]) -> None:
        """Call ``callback`` once when the call has ended.

        It receives True if everything was written to the connection. It receives False if the
        client cancelled the call or was lost before, or if the call has failed: then the client
        gets an error in place of the responses, for example because its deadline has passed.
        """


class Stream(Call, Protocol):
    """A call in which both sides send messages one by one."""

    @property
    def is_open(self) -> bool:
        """Whether messages can still be sent."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were sent and are not written to the connection yet."""

    def send(self, message: ProtobufMessage) -> None:
        """Send a message to the client; without effect if the stream is not open."""

    def finish(self, code: StatusCode = StatusCode.OK, text: str = "") -> None:
        """End the call with a status; without effect if the stream is not open."""


class StreamHandler(Protocol):
    """The receiver of the messages of one stream."""

    def received(self, message: Any) -> None:
        """Handle the next message of the client."""

    def closed(self) -> None:
        """Handle the end: the client sends no more, cancelled, or was lost, or the call ended.

        It is called once, and never while another method of the handler runs. If the client is
        still there, the stream stays open for sending until ``finish`` is called.
        """


HandleAll = Callable[
    [Sequence[tuple[Call, Any]]], Sequence[ResponseMessage | Awaitable[ResponseMessage]]
]
"""Returns the responses to calls with their requests, or awaitables of them, in the same order."""


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """A method with one request and one response."""

    request: type[ProtobufMessage]
    handle: Callable[[Call, Any], ResponseMessage | Awaitable[ResponseMessage]]
    """Returns the response, or an awaitable of it. A response that needs no waiting is cheaper."""
    handle_all: HandleAll | None = None
    """Answers calls of a connection that arrived together, if that is cheaper than one by one."""
    request_bytes: int | None = None
    """Limit for a request, also after decompression; None for that of the transport."""


@dataclass(frozen=True, slots=True)
class ResponseStreamMethod:
    """A method with one request and several responses, which are sent together."""

    request: type[ProtobufMessage]
    handle: Callable[[Call, Any], Sequence[ResponseMessage] | Awaitable[Sequence[ResponseMessage]]]
    request_bytes: int | None = None
    """Limit for a request, as for a :class:`UnaryMethod`."""


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A method whose messages are exchanged one by one in both directions."""

    request: type[ProtobufMessage]
    handle: Callable[[Stream], StreamHandler]
    request_bytes: int | None = None
    """Limit for a message of the client, as for a :class:`UnaryMethod`."""


Method = UnaryMethod | ResponseStreamMethod | StreamMethod
Methods = Mapping[str, Method]
"""Methods by path, such as ``/apache.rocketmq.v2.MessagingService/SendMessage``."""
