"""Calls and streams without a transport, for the tests of what calls mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from firetrail.proxy.call import ProtobufMessage, StatusCode
from firetrail.proxy.schema.messages import TelemetryCommand

METADATA = {"x-mq-client-id": "c1", "x-mq-language": "PYTHON", "x-mq-client-version": "5.1.2"}


class FakeCall:
    """A call whose end the test decides."""

    def __init__(
        self, metadata: Mapping[str, str] = METADATA, *, peer: str = "192.0.2.7:4321"
    ) -> None:
        self.metadata = metadata
        self.peer = peer
        self.local = "127.0.0.1:8081"
        self.authority = "broker.example:8081"
        self.left_s: float | None = None
        self._callbacks: list[Callable[[bool], None]] = []

    def remaining_s(self) -> float | None:
        return self.left_s

    def when_done(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)

    def end(self, is_written: bool) -> None:
        """End the call."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(is_written)


class FakeStream(FakeCall):
    """A stream that keeps what is sent, and how it ended."""

    def __init__(
        self, metadata: Mapping[str, str] = METADATA, *, peer: str = "192.0.2.7:4321"
    ) -> None:
        super().__init__(metadata, peer=peer)
        self.sent: list[TelemetryCommand] = []
        self.ended: tuple[StatusCode, str] | None = None
        self.waiting_bytes = 0

    @property
    def is_open(self) -> bool:
        return self.ended is None

    def send(self, message: ProtobufMessage) -> None:
        if self.is_open:
            self.sent.append(cast(TelemetryCommand, message))

    def finish(self, code: StatusCode = StatusCode.OK, text: str = "") -> None:
        if self.is_open:
            self.ended = (code, text)
