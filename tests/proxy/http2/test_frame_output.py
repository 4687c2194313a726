"""Flow control: nothing exceeds a window, nothing is lost, and streams take turns."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.proxy.http2.test_http2_connection import COMPLETE, reset, setting, window_update
from tests.proxy.http2.wire import Wire, headers

from firetrail.proxy.http2.codes import END_STREAM, FrameType, SettingId
from firetrail.proxy.http2.limits import Http2Limits


class Client(RuleBasedStateMachine):
    """A client that opens streams and windows at will, and checks what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire(Http2Limits(idle_frames=1 << 30, resets=1 << 30))
        self.next_id = 1
        self.window = 65_535
        self.initial_window = 65_535
        self.windows: dict[int, int] = {}  # of the open streams
        self.expected: dict[int, bytes] = {}  # what the streams have still to receive
        self.responded: set[int] = set()

    def receive(self) -> None:
        for one in self.wire.take():
            number = one.stream_id
            if one.kind is FrameType.DATA:
                size = len(one.payload)
                assert 0 < size <= min(self.window, self.windows[number])
                self.window -= size
                self.windows[number] -= size
                assert self.expected[number].startswith(one.payload)
                self.expected[number] = self.expected[number][size:]
            elif one.kind is FrameType.HEADERS and one.flags & END_STREAM:
                assert not self.expected.pop(number)
                del self.windows[number]
            else:
                assert one.kind in (FrameType.HEADERS, FrameType.SETTINGS)

    @rule()
    def open(self) -> None:
        self.wire.http2.receive(headers(self.next_id, flags=COMPLETE), 0.0)
        self.windows[self.next_id] = self.initial_window
        self.next_id += 2

    @precondition(lambda self: set(self.windows) - self.responded)
    @rule(pick=st.integers(0), size=st.integers(0, 200_000))
    def respond(self, pick: int, size: int) -> None:
        waiting = sorted(set(self.windows) - self.responded)
        number = waiting[pick % len(waiting)]
        self.responded.add(number)
        self.expected[number] = bytes([number % 256]) * size
        request = self.wire.requests[number]
        self.wire.http2.output.respond(request.stream, b"\x88", self.expected[number], b"\x88")

    @rule(size=st.integers(1, 100_000))
    def widen(self, size: int) -> None:
        self.window += size
        self.wire.http2.receive(window_update(0, size), 0.0)

    @precondition(lambda self: self.windows)
    @rule(pick=st.integers(0), size=st.integers(1, 100_000))
    def widen_stream(self, pick: int, size: int) -> None:
        number = sorted(self.windows)[pick % len(self.windows)]
        self.windows[number] += size
        self.wire.http2.receive(window_update(number, size), 0.0)

    @rule(size=st.integers(0, 100_000))
    def change_windows(self, size: int) -> None:
        for number in self.windows:
            self.windows[number] += size - self.initial_window
        self.initial_window = size
        self.wire.http2.receive(setting(SettingId.INITIAL_WINDOW_SIZE, size), 0.0)

    @precondition(lambda self: self.windows)
    @rule(pick=st.integers(0))
    def reset(self, pick: int) -> None:
        number = sorted(self.windows)[pick % len(self.windows)]
        self.receive()
        if number in self.windows:
            del self.windows[number]
            self.expected.pop(number, None)
            self.wire.http2.receive(reset(number), 0.0)

    @invariant()
    def nothing_waits_without_a_reason(self) -> None:
        self.receive()
        assert not self.wire.http2.is_over
        assert self.wire.http2.output.queued_bytes == sum(map(len, self.expected.values()))
        if self.window > 0:
            assert all(self.windows[number] <= 0 for number in self.expected)
        assert set(self.wire.http2.streams) == set(self.windows)


TestClient = Client.TestCase
TestClient.settings = settings(max_examples=40, stateful_step_count=30)


def test_streams_take_turns() -> None:
    wire = Wire()
    wire.send(headers(1, flags=COMPLETE), headers(3, flags=COMPLETE))
    wire.send(window_update(1, 1 << 20), window_update(3, 1 << 20))
    for number in (1, 3):
        wire.respond(number, bytes(500_000))
    found = wire.send(window_update(0, 400_000))
    sizes = {number: 0 for number in (1, 3)}
    for one in found:
        sizes[one.stream_id] += len(one.payload)
    assert abs(sizes[1] - sizes[3]) <= 70_000, sizes


def test_frames_are_as_long_as_the_client_allows() -> None:
    wire = Wire()
    wire.send(setting(SettingId.MAX_FRAME_SIZE, 20_000), headers(1, flags=COMPLETE))
    found = wire.respond(1, bytes(50_000))
    assert [len(one.payload) for one in found if one.kind is FrameType.DATA] == [20_000] * 2 + [
        10_000
    ]


def test_the_memory_of_a_stream_that_is_reset_is_released() -> None:
    wire = Wire()
    wire.send(setting(SettingId.INITIAL_WINDOW_SIZE, 0), headers(1, flags=COMPLETE))
    wire.respond(1, bytes(1000))
    assert wire.http2.output.queued_bytes == 1000
    wire.send(reset(1))
    assert wire.http2.output.queued_bytes == 0
    assert wire.requests[1].events == ["cancelled"]


def test_an_empty_body_needs_no_frame() -> None:
    wire = Wire()
    wire.send(headers(1, flags=COMPLETE))
    assert [one.kind for one in wire.respond(1, b"")] == [FrameType.HEADERS, FrameType.HEADERS]


def test_the_end_of_a_response_does_not_keep_all_of_it() -> None:
    """A client that accepts all but the end must not keep more than is counted."""
    wire = Wire()
    wire.http2.receive(headers(1, flags=COMPLETE), 0.0)
    stream = wire.requests[1].stream
    wire.http2.output.respond(stream, b"\x88", bytes(65_536), b"\x88")
    assert stream.queue is not None
    (rest,) = stream.queue
    assert isinstance(rest, memoryview)
    assert (len(rest), len(rest.obj)) == (1, 1)  # type: ignore[arg-type]
