"""The size limits of messages, and their compression."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.clusters import read_all

from firetrail.client import IllegalMessageError, Message, MessageQueue, Producer
from firetrail.client.messages.send_requests import OutgoingMessage, batch_of, check_frame, draft_of
from firetrail.errors import PropertiesTooLongError
from firetrail.format import compression
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.layout import COMPRESSED
from firetrail.remoting.wire.codes import Language, RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FRAME_MAX, FrameReader, encode_frame

MESSAGE_MAX = 4 << 20
"""The largest body that brokers accept by default."""
RANDOM = os.urandom(MESSAGE_MAX)


def drafted(body: bytes) -> OutgoingMessage:
    return draft_of(Message("T", body), iter(["id"]))


class TestBodies:
    def test_a_body_that_compression_does_not_shrink_is_sent_unchanged(self) -> None:
        draft = drafted(RANDOM)
        assert draft.body == RANDOM
        assert not draft.sys_flag & COMPRESSED

    def test_a_body_that_compression_shrinks_is_sent_compressed(self) -> None:
        draft = drafted(bytes(MESSAGE_MAX))
        assert len(draft.body) < 10_000
        assert draft.sys_flag & COMPRESSED

    async def test_the_largest_allowed_body_is_accepted(self, namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            await producer.send(Message("T", RANDOM))
            (got,) = await read_all(namesrv, "T", 1)
            assert got.body == RANDOM

    def test_a_body_that_consumers_cannot_decompress_is_rejected(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compression, "INFLATED_MAX", 100_000)
        draft = drafted(bytes(100_000))
        assert len(compression.inflated(draft.body, draft.sys_flag)) == 100_000
        with pytest.raises(IllegalMessageError) as raised:
            drafted(bytes(100_001))
        assert str(raised.value) == (
            "body: 100001 bytes; consumers decompress at most 100000, "
            "so send it in several messages"
        )


def test_properties_that_are_too_long_are_rejected() -> None:
    """The broker would close the connection because of a header that is too long."""
    message = Message("T", b"", properties={"p": "v" * 300_000})
    with pytest.raises(PropertiesTooLongError, match=r"properties: 3000\d\d bytes, at most 32767"):
        draft_of(message, iter(["id"]))
    with pytest.raises(PropertiesTooLongError, match=r"properties: 3000\d\d bytes, at most 32767"):
        batch_of([message], iter(["id"]))


class TestFrames:
    @pytest.mark.parametrize(
        "send",
        [
            lambda producer: producer.send(Message("T", os.urandom(FRAME_MAX))),
            lambda producer: producer.send_one_way(Message("T", os.urandom(FRAME_MAX))),
            lambda producer: producer.send_batch([Message("T", bytes(4 << 20))] * 4),
            lambda producer: producer.send_encoded(
                "T",
                encode_batch([BatchItem(0, bytes(9 << 20), b"")] * 2),
                queue=MessageQueue("T", "broker-a", 0),
            ),
        ],
        ids=["send", "one way", "batch", "encoded"],
    )
    async def test_requests_that_are_too_long_are_rejected(
        self, namesrv: str, send: Callable[[Producer], Any]
    ) -> None:
        """They are rejected before they are sent, and the connection stays open."""
        async with Producer(namesrv) as producer:
            await producer.send(Message("T", b"before"))
            with pytest.raises(IllegalMessageError, match="brokers read at most 16777216"):
                await send(producer)
            assert not producer._session._losses
            await producer.send(Message("T", b"after"))

    def test_the_longest_request_that_a_broker_reads(self) -> None:
        """The limit is exact, with the longest request number."""

        def frame(size: int) -> tuple[OutgoingMessage, bytes]:
            draft = OutgoingMessage("T", "", "", bytes(size), 0, 0, False, born_ms=0)
            fields = draft.header("G", 0).encode()
            command = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2,
                fields,
                draft.body,
                opaque=2**31 - 1,
                language=Language.PYTHON,
            )
            return draft, b"".join(encode_frame(command))

        overhead = len(frame(0)[1])
        draft, raw = frame(FRAME_MAX - overhead)
        assert len(raw) == FRAME_MAX
        check_frame(RequestCode.SEND_MESSAGE_V2, draft.header("G", 0), draft.body)
        assert len(list(FrameReader().feed(raw))) == 1
        draft, _ = frame(FRAME_MAX - overhead + 1)
        with pytest.raises(IllegalMessageError, match=f"a request of {FRAME_MAX + 1} bytes"):
            check_frame(RequestCode.SEND_MESSAGE_V2, draft.header("G", 0), draft.body)
