"""Frames of a client, the rules of RFC 9113, and the limits against floods."""

from collections.abc import Callable

import pytest
from tests.proxy.http2.wire import (
    REQUEST,
    SETTINGS_FRAME,
    Frame,
    Wire,
    data,
    failure_of,
    frame,
    headers,
    reset_of,
    uint32,
)

from firetrail.proxy.http2.codes import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
    FrameType,
    Http2Error,
    SettingId,
)
from firetrail.proxy.http2.limits import Http2Limits
from firetrail.proxy.http2.response_headers import encode_block

COMPLETE = END_HEADERS | END_STREAM
PING = frame(FrameType.PING, 0, 0, b"12345678")


def setting(key: int, value: int) -> bytes:
    return frame(FrameType.SETTINGS, 0, 0, key.to_bytes(2, "big") + uint32(value))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, uint32(increment))


def reset(stream_id: int) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream_id, uint32(Http2Error.CANCEL))


def kinds(found: list[Frame]) -> list[FrameType]:
    return [one.kind for one in found]


class TestRequests:
    def test_the_server_announces_its_limits_and_acknowledges_settings(self) -> None:
        wire = Wire(greet=False)
        found = wire.send(PREFACE, SETTINGS_FRAME)
        assert kinds(found) == [FrameType.SETTINGS, FrameType.WINDOW_UPDATE, FrameType.SETTINGS]
        announced = found[0].payload
        assert uint32(Http2Limits().streams) in announced
        assert found[2].flags == ACK

    def test_a_request_and_its_response(self) -> None:
        wire = Wire()
        assert wire.send(headers(1), data(1, b"abc")) == []
        request = wire.requests[1]
        assert (request.body, request.is_complete) == (b"abc", True)
        assert request.head.path == "/test.Service/Echo"
        assert request.head.authority == "localhost"
        assert request.head.fields == {"te": "trailers", "content-type": "application/grpc"}
        found = wire.respond(1, b"xyz", b"\x89")
        assert kinds(found) == [FrameType.HEADERS, FrameType.DATA, FrameType.HEADERS]
        assert found[0].payload == b"\x20\x88"  # a table of the size 0, once
        assert [one.flags for one in found] == [END_HEADERS, 0, COMPLETE]
        assert request.events == ["written"]
        assert not wire.http2.streams
        wire.send(headers(3, flags=COMPLETE))
        assert wire.respond(3, b"")[0].payload == b"\x88"

    def test_bytes_may_arrive_one_by_one(self) -> None:
        wire = Wire(greet=False)
        for byte in PREFACE + SETTINGS_FRAME + headers(1) + data(1, b"abc"):
            wire.send(bytes([byte]))
        assert wire.requests[1].is_complete

    def test_padding_and_priorities_are_dropped(self) -> None:
        wire = Wire()
        block = encode_block(REQUEST)
        flags = END_HEADERS | PADDED | PRIORITY_FLAG
        wire.send(frame(FrameType.HEADERS, flags, 1, b"\x03" + bytes(5) + block + bytes(3)))
        wire.send(frame(FrameType.DATA, PADDED | END_STREAM, 1, b"\x02abc\0\0"))
        wire.send(frame(FrameType.PRIORITY, 0, 1, bytes(5)), frame(0xBE, 0, 1, b"unknown"))
        assert wire.requests[1].body == b"abc"
        assert not wire.http2.is_over

    def test_headers_continue_in_other_frames(self) -> None:
        wire = Wire()
        block = encode_block(REQUEST)
        wire.send(
            frame(FrameType.HEADERS, END_STREAM, 1, block[:10]),
            frame(FrameType.CONTINUATION, 0, 1, block[10:20]),
            frame(FrameType.CONTINUATION, END_HEADERS, 1, block[20:]),
        )
        assert wire.requests[1].is_complete

    def test_trailers_end_a_request(self) -> None:
        wire = Wire()
        wire.send(headers(1), data(1, b"abc", 0), headers(1, [("x", "y")], COMPLETE))
        assert wire.requests[1].is_complete

    def test_pings_are_answered(self) -> None:
        assert Wire().send(PING) == [(FrameType.PING, ACK, 0, b"12345678")]

    def test_a_response_before_the_end_of_the_request_stops_the_client(self) -> None:
        wire = Wire()
        wire.send(headers(1), data(1, b"abc", 0))
        found = wire.respond(1, b"no")
        assert reset_of(found, 1) is Http2Error.NO_ERROR
        assert wire.send(data(1, b"late"), headers(1, [], COMPLETE)) == []
        assert wire.requests[1].body == b"abc"

    def test_a_reset_cancels_the_request(self) -> None:
        wire = Wire()
        wire.send(headers(1), reset(1))
        assert wire.requests[1].events == ["cancelled"]

    def test_a_lost_connection_cancels_all_requests(self) -> None:
        wire = Wire()
        wire.send(headers(1), headers(3))
        wire.http2.lost()
        assert [one.events for one in wire.requests.values()] == [["cancelled"]] * 2

    def test_going_away_lets_open_streams_finish(self) -> None:
        wire = Wire()
        wire.send(headers(1, flags=COMPLETE))
        wire.http2.go_away()
        assert failure_of(wire.take()) is Http2Error.NO_ERROR
        assert reset_of(wire.send(headers(3)), 3) is Http2Error.REFUSED_STREAM
        assert kinds(wire.respond(1, b"x"))[-1] is FrameType.HEADERS

    def test_windows_for_the_client_are_refilled(self) -> None:
        wire = Wire(Http2Limits(stream_window=1000, connection_window=70_000))
        updates = [
            (one.stream_id, int.from_bytes(one.payload, "big"))
            for number in range(80)
            for one in wire.send(*([] if number else [headers(1)]), data(1, bytes(600), 0))
        ]
        assert [one for one in updates if one[0]] == [(1, 600)] * 80
        assert [one for one in updates if not one[0]] == [(0, 35_400)]


PROTOCOL, SIZE = Http2Error.PROTOCOL_ERROR, Http2Error.FRAME_SIZE_ERROR
FLOW, CLOSED = Http2Error.FLOW_CONTROL_ERROR, Http2Error.STREAM_CLOSED
BLOCK = encode_block(REQUEST)

ENDS_CONNECTION: list[tuple[str, bytes, Http2Error]] = [
    ("data on stream 0", data(0, b"x"), PROTOCOL),
    ("data on an idle stream", data(1, b"x"), PROTOCOL),
    ("an empty padded frame", headers(1) + frame(0, PADDED, 1), SIZE),
    ("too much padding", headers(1) + frame(0, PADDED, 1, b"\x05abc"), PROTOCOL),
    ("headers on stream 0", headers(0), PROTOCOL),
    ("headers on an even stream", headers(2), PROTOCOL),
    ("a smaller stream", headers(5) + headers(3), PROTOCOL),
    ("short headers", frame(FrameType.HEADERS, COMPLETE | PRIORITY_FLAG, 1, b"abc"), SIZE),
    ("broken compression", frame(1, COMPLETE, 1, b"\xff" * 9), Http2Error.COMPRESSION_ERROR),
    ("a lonely CONTINUATION", frame(9, END_HEADERS, 1), PROTOCOL),
    ("an interrupted block", frame(1, 0, 1, BLOCK) + PING, PROTOCOL),
    ("another stream's block", frame(1, 0, 1, BLOCK) + frame(9, 4, 3), PROTOCOL),
    ("a priority of stream 0", frame(2, 0, 0, bytes(5)), PROTOCOL),
    ("a reset of stream 0", reset(0), PROTOCOL),
    ("a reset of an idle stream", reset(1), PROTOCOL),
    ("a short reset", headers(1) + frame(3, 0, 1, b"abc"), SIZE),
    ("settings of a stream", frame(4, 0, 1), PROTOCOL),
    ("an ACK with settings", frame(4, ACK, 0, bytes(6)), SIZE),
    ("half a setting", frame(4, 0, 0, bytes(5)), SIZE),
    ("a push setting of 2", setting(SettingId.ENABLE_PUSH, 2), PROTOCOL),
    ("a window setting of 2**31", setting(SettingId.INITIAL_WINDOW_SIZE, 2**31), FLOW),
    ("a frame size below the minimum", setting(SettingId.MAX_FRAME_SIZE, 16383), PROTOCOL),
    ("a frame size above the maximum", setting(SettingId.MAX_FRAME_SIZE, 2**24), PROTOCOL),
    ("a push", frame(5, END_HEADERS, 1, uint32(2)), PROTOCOL),
    ("a ping of a stream", frame(6, 0, 1, bytes(8)), PROTOCOL),
    ("a short ping", frame(6, 0, 0, bytes(7)), SIZE),
    ("GOAWAY of a stream", frame(7, 0, 1, bytes(8)), PROTOCOL),
    ("a short GOAWAY", frame(7, 0, 0, bytes(7)), SIZE),
    ("a short window update", frame(8, 0, 0, bytes(3)), SIZE),
    ("a window update of 0", window_update(0, 0), PROTOCOL),
    ("a window that overflows", window_update(0, 2**31 - 1), FLOW),
    ("a window update of an idle stream", window_update(1, 1), PROTOCOL),
    ("a frame that is too long", frame(0, 0, 1, bytes(16_385)), SIZE),
    (
        "stream windows that overflow",
        headers(1) + window_update(1, 2**31 - 65_536) + setting(4, 65_536),
        FLOW,
    ),
]

ENDS_STREAM: list[tuple[str, bytes, Http2Error]] = [
    ("data when half closed", headers(1, flags=COMPLETE) + data(1, b"x"), CLOSED),
    ("headers when half closed", headers(1, flags=COMPLETE) + headers(1), CLOSED),
    ("trailers that do not end", headers(1) + headers(1, [("x", "y")]), PROTOCOL),
    ("trailers with a status", headers(1) + headers(1, [(":status", "1")], COMPLETE), PROTOCOL),
    ("a long priority", headers(1) + frame(2, 0, 1, bytes(6)), SIZE),
    ("a stream that depends on itself", headers(1) + frame(2, 0, 1, uint32(1) + b"0"), PROTOCOL),
    ("the same in headers", frame(1, COMPLETE | 0x20, 1, uint32(1) + b"0" + BLOCK), PROTOCOL),
    ("data after a reset", headers(1) + reset(1) + data(1, b"x"), CLOSED),
    ("headers after a reset", headers(1) + reset(1) + headers(1), CLOSED),
    ("a window update of 0", headers(1) + window_update(1, 0), PROTOCOL),
    ("a window that overflows", headers(1) + window_update(1, 2**31 - 1), FLOW),
    (
        "more data than announced",
        headers(1, (*REQUEST, ("content-length", "2"))) + data(1, b"abc", 0),
        PROTOCOL,
    ),
    (
        "less data than announced",
        headers(1, (*REQUEST, ("content-length", "4"))) + data(1, b"abc"),
        PROTOCOL,
    ),
    (
        "no data, although announced",
        headers(1, (*REQUEST, ("content-length", "4")), COMPLETE),
        PROTOCOL,
    ),
]


def named(cases: list[tuple[str, bytes, Http2Error]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("sent", "code"), [case[1:] for case in cases], ids=[case[0] for case in cases]
    )


class TestViolations:
    @named(ENDS_CONNECTION)
    def test_a_violation_ends_the_connection(self, sent: bytes, code: Http2Error) -> None:
        wire = Wire()
        assert failure_of(wire.send(sent)) is code
        assert wire.http2.is_over
        assert wire.http2.failure
        assert wire.send(PING) == []

    @pytest.mark.parametrize("late", [data(1, b"x"), headers(1)])
    def test_a_frame_after_both_ends_of_a_stream_ends_the_connection(self, late: bytes) -> None:
        wire = Wire()
        wire.send(headers(1), data(1, b""))
        wire.respond(1, b"")
        assert failure_of(wire.send(late)) is CLOSED

    @named(ENDS_STREAM)
    def test_a_violation_ends_the_stream_only(self, sent: bytes, code: Http2Error) -> None:
        wire = Wire()
        assert reset_of(wire.send(sent), 1) is code
        assert 1 not in wire.http2.streams
        assert all(one.events == ["cancelled"] for one in wire.requests.values())
        wire.send(headers(7, flags=COMPLETE))
        assert wire.requests[7].is_complete

    @pytest.mark.parametrize(
        "sent", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\3"]
    )
    def test_other_protocols_are_refused(self, sent: bytes) -> None:
        wire = Wire(greet=False)
        assert failure_of(wire.send(sent)) is PROTOCOL
        assert wire.http2.failure == "the client does not speak HTTP/2"

    @pytest.mark.parametrize("first", [PING, headers(1), frame(4, ACK, 0)])
    def test_the_first_frame_must_be_settings(self, first: bytes) -> None:
        assert failure_of(Wire(greet=False).send(PREFACE, first)) is PROTOCOL

    def test_more_data_than_a_window_is_refused(self) -> None:
        limits = Http2Limits(stream_window=100, connection_window=70_000)
        wire = Wire(limits)
        assert reset_of(wire.send(headers(1), data(1, bytes(101), 0)), 1) is FLOW
        small = Wire(Http2Limits(stream_window=200_000, connection_window=65_535))
        small.http2._receive_window = 10
        assert failure_of(small.send(headers(1), data(1, bytes(11), 0))) is FLOW


def repeated(one: bytes) -> Callable[[int], bytes]:
    return lambda number: one


CALM = Http2Error.ENHANCE_YOUR_CALM
FLOODS: list[tuple[str, Callable[[int], bytes]]] = [
    ("pings", repeated(PING)),
    ("settings", repeated(setting(SettingId.INITIAL_WINDOW_SIZE, 1))),
    ("acknowledgements", repeated(frame(4, ACK, 0))),
    ("empty data", lambda number: (b"" if number else headers(1)) + data(1, b"", 0)),
    ("padding", lambda number: (b"" if number else headers(1)) + data(1, b"\0", PADDED)),
    ("priorities", repeated(frame(2, 0, 1, bytes(5)))),
    ("unknown frames", repeated(frame(0xFA, 0, 0))),
    ("windows", repeated(window_update(0, 1))),
    (
        "windows of old streams",
        lambda n: (b"" if n else headers(1) + reset(1)) + window_update(1, 1),
    ),
    ("resets of old streams", lambda number: (b"" if number else headers(1)) + reset(1)),
    ("rapid resets", lambda number: headers(2 * number + 1) + reset(2 * number + 1)),
    ("malformed requests", lambda number: headers(2 * number + 1, [("A", "b")])),
    ("late data", lambda n: (b"" if n else headers(1) + window_update(1, 0)) + data(1, b"x", 0)),
]


class TestFloods:
    @pytest.mark.parametrize("flood", [one[1] for one in FLOODS], ids=[one[0] for one in FLOODS])
    def test_a_flood_ends_the_connection(self, flood: Callable[[int], bytes]) -> None:
        limits = Http2Limits(idle_frames=50, resets=50)
        wire = Wire(limits)
        found = [failure_of(wire.send(flood(number))) for number in range(70)]
        assert found[20:].count(CALM) == 1
        assert "too many" in wire.http2.failure

    @pytest.mark.parametrize("flood", [one[1] for one in FLOODS], ids=[one[0] for one in FLOODS])
    def test_the_same_frames_over_a_longer_time_are_no_flood(
        self, flood: Callable[[int], bytes]
    ) -> None:
        wire = Wire(Http2Limits(idle_frames=50, resets=50, idle_frames_per_s=25, resets_per_s=10))
        for number in range(200):
            wire.now += 0.1
            assert failure_of(wire.send(flood(number))) is None

    def test_traffic_justifies_pings_and_windows(self) -> None:
        wire = Wire(Http2Limits(idle_frames=50))
        for number in range(1, 1000, 2):
            wire.send(headers(number), data(number, b"abc"), PING, PING)
            assert failure_of(wire.respond(number, bytes(1000))) is None
            assert failure_of(wire.send(window_update(0, 1000))) is None

    def test_settings_cost_more_if_they_change_many_windows(self) -> None:
        change = setting(SettingId.INITIAL_WINDOW_SIZE, 1)
        few, many = Wire(Http2Limits(idle_frames=50)), Wire(Http2Limits(idle_frames=50))
        many.send(*map(headers, range(1, 1281, 2)))
        assert failure_of(few.send(change * 20)) is None
        assert failure_of(many.send(change * 20)) is CALM

    def test_resets_of_old_calls_are_no_flood(self) -> None:
        wire = Wire(Http2Limits(resets=10))
        numbers = range(1, 200, 2)
        wire.send(*map(headers, numbers))
        wire.now += 2.0
        assert failure_of(wire.send(*map(reset, numbers))) is None

    def test_headers_in_too_many_frames(self) -> None:
        wire = Wire(Http2Limits(block_frames=5))
        sent = frame(1, 0, 1, b"") + frame(9, 0, 1, b"") * 5
        assert failure_of(wire.send(sent)) is CALM

    def test_headers_that_are_too_long(self) -> None:
        wire = Wire(Http2Limits(block_bytes=20_000))
        sent = frame(1, 0, 1, bytes(16_000)) + frame(9, 0, 1, bytes(16_000))
        assert failure_of(wire.send(sent)) is CALM
        assert wire.http2.failure == "the headers of a request are too long"

    def test_headers_that_are_too_long_when_decompressed(self) -> None:
        """An HPACK bomb: a long header in the table, and a block that repeats it."""
        wire = Wire(Http2Limits(header_list_bytes=20_000))
        long = b"\x40\x01x\x7f\xd1\x0e" + bytes([120]) * 2000
        assert failure_of(wire.send(frame(1, COMPLETE, 1, BLOCK + long))) is None
        assert failure_of(wire.send(frame(1, COMPLETE, 3, BLOCK + b"\xbe" * 20))) is CALM

    def test_streams_above_the_limit_are_refused(self) -> None:
        wire = Wire(Http2Limits(streams=3))
        found = wire.send(*map(headers, (1, 3, 5, 7)))
        assert reset_of(found, 7) is Http2Error.REFUSED_STREAM
        assert list(wire.http2.streams) == [1, 3, 5]

    def test_a_client_that_accepts_nothing_is_disconnected_for_its_memory(self) -> None:
        wire = Wire(Http2Limits(queued_bytes=1000))
        wire.send(setting(SettingId.INITIAL_WINDOW_SIZE, 0), headers(1, flags=COMPLETE))
        assert failure_of(wire.respond(1, bytes(1001))) is CALM
        assert wire.requests[1].events == ["cancelled"]


class TestTime:
    def check(self, wire: Wire, now: float) -> Http2Error | None:
        wire.http2.check(now)
        return failure_of(wire.take())

    @pytest.mark.parametrize(
        "sent",
        [b"", PREFACE[:5], PREFACE + SETTINGS_FRAME + PING[:-1]],
        ids=["none", "preface", "frame"],
    )
    def test_bytes_must_arrive_in_time(self, sent: bytes) -> None:
        wire = Wire(Http2Limits(arrival_s=30), greet=False)
        wire.send(sent)
        assert self.check(wire, 29.0) is None
        assert self.check(wire, 31.0) is CALM
        assert "did not arrive within 30 s" in wire.http2.failure

    def test_the_headers_must_arrive_in_time_also_in_many_frames(self) -> None:
        wire = Wire(Http2Limits(arrival_s=30))
        wire.send(frame(1, 0, 1, b""))
        wire.now = 29.0
        wire.send(frame(9, 0, 1, b""))
        assert self.check(wire, 29.0) is None
        assert self.check(wire, 31.0) is CALM

    def test_each_frame_has_its_own_time(self) -> None:
        wire = Wire(Http2Limits(arrival_s=30))
        for second in range(0, 300, 20):
            wire.now = float(second)
            wire.send(PING[5:] * (second > 0) + PING[:5])
            assert self.check(wire, wire.now) is None

    def test_a_pause_of_the_server_does_not_count(self) -> None:
        wire = Wire(Http2Limits(arrival_s=30))
        wire.send(PING[:5])
        wire.http2.resumed(100.0)
        assert self.check(wire, 101.0) is None

    def test_queued_data_must_move(self) -> None:
        wire = Wire(Http2Limits(stalled_s=60))
        wire.send(setting(SettingId.INITIAL_WINDOW_SIZE, 1), headers(1, flags=COMPLETE))
        wire.respond(1, b"abc")
        assert self.check(wire, 100.0) is None
        assert self.check(wire, 159.0) is None
        wire.send(window_update(1, 1))
        assert self.check(wire, 161.0) is None
        assert self.check(wire, 222.0) is CALM
        assert wire.http2.failure == "the client accepted no data of the responses for 60 s"

    def test_an_idle_connection_is_fine(self) -> None:
        assert self.check(Wire(), 1e6) is None

    def test_a_sign_of_life_can_be_requested(self) -> None:
        wire = Wire()
        wire.http2.ping()
        assert wire.take() == [(FrameType.PING, 0, 0, bytes(8))]
        assert wire.send(frame(FrameType.PING, ACK, 0, bytes(8))) == []
