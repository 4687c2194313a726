"""Input with one mistake each: frames, codes, messages, offsets, clients."""

import asyncio
import json
import struct
from asyncio import StreamReader
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL, Talk, talking
from tests.broker.test_every_request import is_alive, nothing_unforeseen
from tests.connections import connected

from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import ConsumerData, HeartbeatData, SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import encode_frame


async def frame_from(reader: StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


class TestFrames:
    @pytest.mark.parametrize(
        "frame",
        [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
            b"\x7f\xff\xff\xff" + bytes(100),
            b"\xff\xff\xff\xff" + bytes(100),
            bytes(8),
            b"\x00\x00\x00\x10\x00\xff\xff\xff" + bytes(12),
            b"\x00\x00\x00\x10\x07\x00\x00\x04" + bytes(12),
            b"".join(map(bytes, encode_frame(RemotingCommand(34, {"x": "y"})))).replace(b"{", b"["),
            (4 + 200_000).to_bytes(4, "big") + (200_000).to_bytes(4, "big") + b"[" * 200_000,
        ],
        ids=["http", "tls", "long", "negative", "empty", "header", "kind", "json", "deep"],
    )
    async def test_invalid_frames_close_only_their_connection(self, frame: bytes) -> None:
        with nothing_unforeseen():
            async with talking() as talk:
                async with connected(talk.broker.address) as (reader, writer):
                    writer.write(frame)
                    with suppress(ConnectionResetError):  # this is a close as well
                        assert await reader.read() == b""
                await is_alive(talk)

    async def test_frames_may_arrive_byte_by_byte(self, talk: Talk) -> None:
        asked = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=7)
        async with connected(talk.broker.address) as (reader, writer):
            for byte in b"".join(map(bytes, encode_frame(asked))):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert b'"opaque":7' in await frame_from(reader)


class TestCodes:
    @pytest.mark.parametrize("code", [-1, 0, 1, 9, 99, 999, 9999, 2**31 - 1, -(2**31)])
    async def test_unknown_codes_are_refused(self, talk: Talk, code: int) -> None:
        answer = await talk.ask(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {code} not supported"

    @pytest.mark.parametrize("language", ["RUST", "COBOL", 250, -1, None, [], 1.5])
    async def test_unknown_languages_are_accepted(self, talk: Talk, language: Any) -> None:
        body = HeartbeatData("odd", [], [ConsumerData("CG")]).encode(standard=True)
        header = json.dumps({"code": 34, "language": language, "opaque": 1}).encode()
        sizes = struct.pack(">ii", 4 + len(header) + len(body), len(header))
        async with connected(talk.broker.address) as (reader, writer):
            writer.write(sizes + header + body)
            assert b'"code":40' in await frame_from(reader)  # it has joined a group
            assert b'"code":0' in await frame_from(reader)
            asked = RequestCode.GET_CONSUMER_CONNECTION_LIST
            answer = await talk.ask(asked, consumerGroup="CG")
        shown = "RUST" if language == "RUST" else "OTHER"
        assert f'"language":"{shown}"'.encode() in answer.content


class TestSending:
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"b": "a b"}, ResponseCode.SYSTEM_ERROR),
            ({"b": "../up"}, ResponseCode.SYSTEM_ERROR),
            ({"b": "x" * 128}, ResponseCode.SYSTEM_ERROR),
            ({"b": ""}, ResponseCode.SYSTEM_ERROR),
            ({"b": "%RETRY%" + "x" * 300}, ResponseCode.SYSTEM_ERROR),
            ({"e": 10**6}, ResponseCode.SYSTEM_ERROR),
            ({"i": "k\x01" + "v" * 40_000}, ResponseCode.MESSAGE_ILLEGAL),
            ({"j": -(2**31), "b": "%RETRY%CG"}, 0),
            ({"f": 2**31 - 1}, ResponseCode.MESSAGE_ILLEGAL),  # it has the flag of an inner batch
            ({"f": 2**31 - 1 - 0x80}, 0),
        ],
    )
    async def test_odd_messages_are_answered(
        self, changes: dict[str, Any], code: int, tmp_path: Path
    ) -> None:
        with nothing_unforeseen():
            async with talking(tmp_path / "store") as talk:
                answer = await talk.send(**({"topic": "T1"} | changes))
                assert (answer.code, bool(answer.remark)) == (code, code != 0)
                await is_alive(talk)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]

    @pytest.mark.parametrize("size", [SMALL.max_message_size + 1, 15 << 20])
    async def test_bodies_over_the_limit_are_refused(self, talk: Talk, size: int) -> None:
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            answer = await talk.send("T1", bytes(size), code=code, m=code == 320)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        await is_alive(talk)

    @pytest.mark.parametrize(
        "batch",
        [b"", b"\0" * 3, b"\0\0\0\x7f" + bytes(40), b"\xff" * 64, b"\0\0\0\x10" + bytes(12)],
    )
    async def test_invalid_batches_are_refused(self, batch: bytes) -> None:
        with nothing_unforeseen():
            async with talking() as talk:
                answer = await talk.send("T1", batch, code=RequestCode.SEND_BATCH_MESSAGE, m=True)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL and answer.remark
                await is_alive(talk)


class TestConsuming:
    @pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1, 10**12])
    async def test_pulls_outside_the_queue_are_answered(self, talk: Talk, offset: int) -> None:
        await talk.send("T1")
        await asyncio.to_thread(talk.broker.store.wait_dispatched)
        answer = await talk.pull("T1", offset, sysFlag=6)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert 0 <= int(answer.fields["nextBeginOffset"]) <= 1

    @pytest.mark.parametrize("queue_id", [-1, 10_000, 2**31 - 1])
    async def test_offsets_of_impossible_queues_are_refused(
        self, talk: Talk, queue_id: int
    ) -> None:
        await talk.send("T1")
        answer = await talk.commit(5, queue_id=queue_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR and str(queue_id) in (answer.remark or "")
        assert talk.broker.offsets.of_group("CG") == {}

    async def test_groups_with_too_many_queues_are_refused(self, talk: Talk) -> None:
        for wrong in ({"retryQueueNums": 10**9}, {"retryQueueNums": -1}):
            body = SubscriptionGroupConfig("CG").to_json() | wrong
            answer = await talk.ask(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(body).encode()
            )
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "retryQueueNums" in (answer.remark or "")
        assert talk.broker.groups.get("CG") is None

    async def test_one_client_id_on_many_connections_is_accepted(self, talk: Talk) -> None:
        others = [RemotingClient() for _ in range(5)]
        for other in others:
            await talk.beat("CG", "same", client=other)
        answer = await talk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="CG")
        assert answer.content == b'{"consumerIdList":["same"]}'
        for other in others[1:]:
            await other.close()
        answer = await talk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="CG")
        assert answer.content == b'{"consumerIdList":["same"]}'
        await others[0].close()
