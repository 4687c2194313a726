"""A topic on two brokers: offsets per broker, queues numbered across both, and retries."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.helpers import small_config
from tests.pipeline.wire.talk import create, received, run

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Admin
from firetrail.errors import ConfigError, PipelineError, RequestError
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.sink.sink_columns import parse_wire_options
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.wire import request_retry
from firetrail.pipeline.wire.broker_reader import read_wire
from firetrail.pipeline.wire.broker_splits import WireSplit
from firetrail.pipeline.wire.broker_stream import WireStreamReader
from firetrail.pipeline.wire.request_retry import RequestRetry
from firetrail.pipeline.wire.sender import Sender
from firetrail.remoting.wire.codes import ResponseCode

ROWS = {"topic": ["T"] * 40, "body": [f"{n}" for n in range(40)]}


@pytest.fixture
def namesrv(tmp_path: Path, broker: BackgroundBroker) -> Iterator[str]:
    """The name server of two brokers that both have the topic T with two queues."""
    config = BrokerConfig(name="broker-b", namesrv=broker.namesrv)
    store = small_config(log=1 << 16)
    with BackgroundBroker(tmp_path / "b", config, store):

        async def registered() -> None:
            async with Admin(broker.namesrv) as admin:
                while len(await admin.masters()) < 2:
                    await asyncio.sleep(0.01)

        run(registered)
        create(broker.namesrv, "T", 2)
        yield broker.namesrv


def push(namesrv: str, **columns: list[int]) -> None:
    sender = Sender(parse_wire_options({"namesrv": namesrv}), None)
    sender.send([pa.RecordBatch.from_pydict(ROWS | columns)])


def bodies(namesrv: str, **options: str) -> list[int]:
    plan = plan_batch(parse_options({"namesrv": namesrv, "subscribe": "T"} | options))
    found = []
    for split in plan.splits:
        assert isinstance(split, WireSplit)
        for batch in read_wire(split):
            found += [int(body) for body in batch.column("body").to_pylist()]
    return sorted(found)


def test_a_topic_on_two_brokers_is_read_from_both(namesrv: str) -> None:
    push(namesrv)
    places = {(m.queue.broker_name, m.queue.queue_id) for m in received(namesrv, "T", 40)}
    assert places == {("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)}
    assert bodies(namesrv) == list(range(40))
    later = '{"T": {"broker-a/0": 10, "broker-a/1": 10, "broker-b/0": 9, "broker-b/1": 10}}'
    assert bodies(namesrv, startingOffsets=later) == [38]
    with pytest.raises(ConfigError, match=r"'T/0': no such queue; the queues are .*broker-b/0"):
        bodies(namesrv, startingOffsets='{"T": {"0": 3}}')
    options = parse_options({"namesrv": namesrv, "subscribe": "T"}, stream=True)
    ends = {f"broker-{name}/{queue}": 10 for name in "ab" for queue in (0, 1)}
    assert WireStreamReader(options, ["body"]).initialOffset() == {"T": ends}


def test_queues_are_counted_over_both(namesrv: str) -> None:
    push(namesrv, queue_id=[3] * 40)
    found = received(namesrv, "T", 40)
    assert {(m.queue.broker_name, m.queue.queue_id) for m in found} == {("broker-b", 1)}
    assert [int(m.body) for m in found] == list(range(40)), "in order"


class TestPatience:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(request_retry, "PAUSE_S", 0.0)

    def outcome(self, *errors: Exception, limit_ms: int = 60_000) -> int:
        left = list(errors)

        async def ask() -> int:
            if left:
                raise left.pop(0)
            return 7

        return run(lambda: RequestRetry("127.0.0.1:1", limit_ms).ask(ask, "asking", "T"))

    def test_temporary_errors_are_retried(self) -> None:
        busy = RequestError(ResponseCode.SYSTEM_BUSY, "busy")
        gone = RequestError(ResponseCode.TOPIC_NOT_EXIST, "its broker is away")
        assert self.outcome(ConnectionResetError(), TimeoutError(), busy, gone) == 7

    def test_an_outage_of_many_attempts_is_retried(self) -> None:
        assert self.outcome(*[ConnectionResetError()] * 1100) == 7

    def test_permanent_errors_are_raised(self) -> None:
        with pytest.raises(RequestError, match="no such"):
            self.outcome(RequestError(ResponseCode.NO_PERMISSION, "no such"))
        what = "asking failed: the name server cannot be reached .* after 1 attempts in .*Reset"
        with pytest.raises(PipelineError, match=what):
            self.outcome(ConnectionResetError(), limit_ms=0)
