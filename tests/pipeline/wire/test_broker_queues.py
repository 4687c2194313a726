"""Searches in the queues of brokers."""

import asyncio
from collections.abc import Callable

import pytest

from firetrail.client.consumers.pull_client import PullResult
from firetrail.format.names import OFFSET_MAX
from firetrail.pipeline.kernels.pick import TIME_MAX
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.wire import broker_queues as module
from firetrail.pipeline.wire.broker_queues import Cluster
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.wire.codes import ResponseCode

MESSAGES = 100
DELETED = 10


class FakeRecord:
    """A message whose store time and physical offset equal its queue offset."""

    def __init__(self, content: bytes) -> None:
        self.store_time = self.physical_offset = int(content)


def test_sizes_of_what_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of sizes must not fail on damage, which the read reports later."""

    async def pull(_: Cluster, queue: MessageQueue, offset: int, count: int) -> PullResult:
        return PullResult(bytes(100), offset + 1, 0, MESSAGES, ResponseCode.SUCCESS, "")

    monkeypatch.setattr(Cluster, "_pull", pull)
    monkeypatch.setattr(Cluster, "_open", lambda _: asyncio.sleep(0))
    with Cluster(parse_options({"namesrv": "127.0.0.1:1"})) as cluster:
        assert cluster.sizes([(MessageQueue("T", "b", 0), 0, MESSAGES)]) == [100 * MESSAGES]


def returning(times: tuple[int, int]) -> Callable[[MessageQueue], tuple[int, int]]:
    return lambda _: times


@pytest.mark.parametrize("what", ["times", "physical_offsets"])
@pytest.mark.parametrize("missing", [20, 49, 50, 51, 74, 90])
def test_a_message_that_is_not_given_hides_no_others(
    what: str, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pull(_: Cluster, queue: MessageQueue, offset: int, count: int) -> PullResult:
        there = offset >= DELETED and offset != missing
        code = ResponseCode.SUCCESS if there else ResponseCode.PULL_RETRY_IMMEDIATELY
        records = b"%d" % offset if there else b""
        return PullResult(records, offset + 1, DELETED, MESSAGES, code, "")

    monkeypatch.setattr(module, "decode_received", FakeRecord)
    monkeypatch.setattr(Cluster, "_pull", pull)
    monkeypatch.setattr(Cluster, "_open", lambda _: asyncio.sleep(0))
    queue = MessageQueue("T", "b", 0)
    with Cluster(parse_options({"namesrv": "127.0.0.1:1"})) as cluster:
        for low in range(1, MESSAGES):
            asked = {"times": (1, TIME_MAX), "physical_offsets": (0, OFFSET_MAX)}
            times, places = (asked | {what: (low, 80)}).values()
            ((begin, end),) = cluster.cut([(queue, 0, MESSAGES)], returning(times), places)
            wanted = range(max(low, DELETED), 80)
            assert not wanted or (begin <= wanted[0] and end >= 80)
            if missing not in range(begin, end):
                assert range(begin, end) == wanted or not wanted
