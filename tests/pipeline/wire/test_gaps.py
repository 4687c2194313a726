"""Messages that a broker leaves out, returns twice, or holds back until they are repaired."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import small_config
from tests.pipeline.wire.talk import create, send
from tests.pipeline.wire.test_batch import rows

from firetrail import Message
from firetrail.broker.background import BackgroundBroker
from firetrail.client.cluster.session import Session
from firetrail.client.consumers.pull_client import PullClient, PullResult
from firetrail.errors import DataLostError, PipelineError, StoreDamagedError
from firetrail.format.layout import RECORD_SIZE_MIN
from firetrail.pipeline.failures import _from_text
from firetrail.pipeline.source.plan.store_splits import QueueRange
from firetrail.pipeline.wire import request_retry
from firetrail.pipeline.wire.broker_splits import BrokerRange
from firetrail.pipeline.wire.gaps import left_out, take
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

CONFIG = small_config(log=1 << 20, units=5000)
COUNT = 100
DAMAGED = (5, 70)
GOOD = [n for n in range(COUNT) if n not in DAMAGED]


def record(offset: int) -> bytes:
    """The beginning of a record, and zeros."""
    head = RECORD_SIZE_MIN.to_bytes(4, "big") + bytes(16) + offset.to_bytes(8, "big")
    return head + bytes(RECORD_SIZE_MIN - len(head))


def answer(*offsets: int, end: int, low: int = 0, high: int = 1000) -> PullResult:
    found = b"".join(map(record, offsets))
    return PullResult(found, end, low, high, ResponseCode.SUCCESS, "FOUND")


class TestTake:
    def test_all_of_a_dense_answer_is_taken(self) -> None:
        dense = answer(3, 4, 5, end=6)
        assert take(dense, 3, 6) == (dense.records, ())

    def test_later_messages_are_left_to_the_slice_that_has_them(self) -> None:
        assert take(answer(3, 5, 6, 7, end=8), 3, 6) == (record(3) + record(5), (4,))

    def test_offsets_at_the_end_can_be_missing(self) -> None:
        assert take(answer(3, end=6), 3, 8).missing == (4, 5)

    def test_offsets_that_the_queue_does_not_have_are_not_missing(self) -> None:
        assert take(answer(6, end=12, low=5, high=8), 3, 12).missing == (5, 7)

    def test_bytes_that_are_no_record_are_left_to_the_decoder(self) -> None:
        torn = PullResult(record(3) + bytes(200), 9, 0, 9, ResponseCode.SUCCESS, "FOUND")
        assert take(torn, 3, 9) == (torn.records, ())


def test_the_error_survives_the_way_to_the_driver() -> None:
    error = left_out(BrokerRange("broker-a", QueueRange("T", 0, 0, 9)), (5, 6))
    restored = _from_text("StoreDamagedError", str(error))
    assert isinstance(restored, StoreDamagedError)
    assert (restored.args, restored.offset) == (error.args, 5)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BackgroundBroker]:
    with BackgroundBroker(tmp_path, store=CONFIG) as running:
        create(running.namesrv, "T", 1)
        messages = [Message("T", b"<%d>" % n, tags="AB"[n % 2]) for n in range(COUNT)]
        send(running.namesrv, messages)
        log = tmp_path / "commitlog" / f"{0:020}"
        data = log.read_bytes()
        with log.open("r+b") as file:
            for number in DAMAGED:
                file.seek(data.index(b"<%d>" % number))
                file.write(b"!")
        yield running


def offsets(broker: BackgroundBroker, **options: str) -> list[int]:
    found = rows(namesrv=broker.namesrv, subscribe="T", **options)
    return [row["queue_offset"] for row in found]


class TestLeftOut:
    def test_messages_that_are_left_out_are_damage(self, broker: BackgroundBroker) -> None:
        what = r"queue T/broker-a/0 at offset 5: the broker broker-a left out the message 5, "
        for loss in ("true", "false"):
            with pytest.raises(StoreDamagedError, match=f"{what}.*mode=permissive to skip"):
                offsets(broker, failOnDataLoss=loss)

    def test_permissive_skips_them_and_returns_the_others_once(
        self, broker: BackgroundBroker
    ) -> None:
        assert offsets(broker, mode="permissive") == GOOD

    def test_a_filter_leaves_out_messages_as_well(self, broker: BackgroundBroker) -> None:
        assert offsets(broker, tags="A") == [n for n in GOOD if n % 2 == 0]

    def test_a_range_without_damage_is_read(self, broker: BackgroundBroker) -> None:
        some = offsets(broker, startingOffsets='{"T": {"0": 7}}', endingOffsets='{"T": {"0": 70}}')
        assert some == list(range(7, 70))

    def test_gaps_are_normal_in_a_compacted_topic(
        self, broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RocketMQ's broker says so; then what is missing is lost, and not damaged."""
        ask = Session.ask
        asked = []

        async def compacted(self: Session, address: str, code: int, *given: Any, **how: Any) -> Any:
            if code != RequestCode.GET_TOPIC_CONFIG:
                return await ask(self, address, code, *given, **how)
            asked.append(given[0].topic)
            config = TopicConfig("T", attributes={"cleanup.policy": "COMPACTION"})
            return RemotingCommand(ResponseCode.SUCCESS, body=config.encode())

        monkeypatch.setattr(Session, "ask", compacted)
        with pytest.raises(DataLostError, match="2 of these offsets have no message"):
            offsets(broker)
        assert offsets(broker, failOnDataLoss="false") == GOOD
        assert set(asked) == {"T"}


def test_a_filtered_read_of_a_long_queue_returns_each_message_once(tmp_path: Path) -> None:
    """The answer to a pull at the end of a slice goes on into the next one."""
    with BackgroundBroker(tmp_path, store=CONFIG) as running:
        create(running.namesrv, "T", 1)
        send(running.namesrv, [Message("T", b"", tags="AB"[n % 3 == 0]) for n in range(900)])
        assert offsets(running, tags="A") == [n for n in range(900) if n % 3]


class TestRepair:
    """A broker that holds a message back until it is repaired."""

    @pytest.fixture
    def held_back(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        monkeypatch.setattr(request_retry, "PAUSE_S", 0.0)
        ask = PullClient.ask

        def hold(times: int) -> None:
            left = times

            async def held(
                self: PullClient, queue: Any, offset: int, *given: Any, **how: Any
            ) -> Any:
                nonlocal left
                found = await ask(self, queue, offset, *given, **how)
                if offset != 10 or not left:
                    return found
                left -= 1
                return found._replace(
                    records=b"",
                    next_offset=offset,
                    code=ResponseCode.PULL_RETRY_IMMEDIATELY,
                    status="OFFSET_OVERFLOW_ONE",
                )

            monkeypatch.setattr(PullClient, "ask", held)

        return hold

    def test_a_read_waits_for_the_repair(
        self, broker: BackgroundBroker, held_back: Callable[[int], None]
    ) -> None:
        held_back(40)
        assert offsets(broker, startingOffsets='{"T": {"0": 10}}', mode="permissive")[0] == 10

    def test_the_retry_timeout_limits_it(
        self, broker: BackgroundBroker, held_back: Callable[[int], None]
    ) -> None:
        held_back(1 << 30)
        what = r"gave up after 1 attempts .*queue T/broker-a/0: the broker returns no message from"
        with pytest.raises(PipelineError, match=f"{what} offset 10 on"):
            offsets(broker, startingOffsets='{"T": {"0": 10}}', retryTimeoutMs="0")
