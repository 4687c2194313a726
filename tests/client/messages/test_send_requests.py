"""Fields of a message that producers send, and those that they reject."""

import asyncio
from datetime import datetime
from itertools import islice
from typing import Any

import pytest
from tests.client.clusters import read_all
from tests.helpers import Machine

from firetrail.client import (
    ConfigError,
    IllegalMessageError,
    Message,
    MessageQueue,
    Outcome,
    Producer,
)
from firetrail.client.messages import send_requests
from firetrail.client.messages.send_requests import batch_of, draft_of, unique_ids
from firetrail.format.values.hosts import Host

QUEUE = MessageQueue("T", "broker-a", 2)
BORN = 1_700_000_000_123


async def test_born_time_is_sent_unchanged(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        await producer.send(Message("T", b"", born_time=BORN))
        await producer.send_batch([Message("T", b"", born_time=BORN) for _ in range(2)])
        await producer.send_one_way(Message("T", b"", born_time=BORN))
        got = await read_all(namesrv, "T", 4)
    assert [message.record.born_time for message in got] == [BORN] * 4


def test_ids_count_from_the_start_of_the_local_month(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setattr(send_requests, "SYSTEM", machine.system)
    month = datetime(2026, 2, 1).timestamp()
    machine.clock.set_wall(int(month * 1000) + 86_400_007)
    ids = unique_ids("10.1.2.3", 1, 2)
    first = next(ids)
    machine.clock.advance(5)
    (second,) = islice(ids, 1)
    assert first == f"0A010203000100000002{86_400_007:08X}0000"
    assert second == f"0A010203000100000002{86_400_012:08X}0001"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"queue_id": 1}, "queue_id: 1 is only for embedded stores; pass queue="),
        ({"queue_id": 1, "queue": QUEUE}, "queue_id: 1 is only for embedded stores"),
        ({"queue": MessageQueue("U", "b", 0)}, "queue: belongs to the topic U, but .* is T"),
        ({"sys_flag": 1}, "sys_flag: is set by the broker"),
        ({"reconsume_times": 1}, "reconsume_times: is set by the broker"),
        ({"prepared_offset": 1}, "prepared_offset: is set by the broker"),
        ({"born_host": Host("127.0.0.1", 1)}, "born_host: is set by the broker"),
        ({"body": "text"}, "body: is of type str, not bytes; encode it first"),
        ({"topic": "a b"}, "topic: 'a b' has a character other than"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_fields_that_cannot_be_sent_are_rejected(fields: dict[str, Any], message: str) -> None:
    queue = fields.pop("queue", None)
    made = Message("T", b"")
    for name, value in fields.items():
        setattr(made, name, value)
    with pytest.raises(IllegalMessageError, match=message):
        draft_of(made, iter(["id"]), queue)
    with pytest.raises(IllegalMessageError, match=message):
        batch_of([made], iter(["id"]), queue)


def test_only_a_transaction_marks_a_message_as_one() -> None:
    """The broker would keep it as a half message that nobody ends."""
    for value in ("true", "TRUE"):
        with pytest.raises(IllegalMessageError, match="use send_in_transaction"):
            draft_of(Message("T", b"", properties={"TRAN_MSG": value}), iter(["id"]))
    draft_of(Message("T", b"", properties={"TRAN_MSG": "no", "IS_TRAN_MSG": "true"}), iter(["id"]))


def test_queue_and_queue_id_may_agree() -> None:
    draft_of(Message("T", b"", queue_id=2), iter(["id"]), QUEUE)


def test_a_batch_needs_one_born_time() -> None:
    batch = [Message("T", b"", born_time=BORN), Message("T", b"")]
    with pytest.raises(IllegalMessageError, match="born_time: must be equal in all"):
        batch_of(batch, iter(["1", "2"]))


@pytest.mark.parametrize("how", ["send_batch", "send_encoded", "send_one_way"])
async def test_a_queue_of_another_topic_is_rejected(namesrv: str, how: str) -> None:
    message = Message("U", b"")
    async with Producer(namesrv) as producer:
        send = getattr(producer, how)
        what = {"send_batch": ([message],), "send_encoded": ("U", b"")}.get(how, (message,))
        with pytest.raises(IllegalMessageError, match="belongs to the topic T"):
            await send(*what, queue=QUEUE)


class TestOrder:
    async def test_the_first_messages_with_a_key_are_in_order(self, namesrv: str) -> None:
        """A producer that knows no route yet also sends in the order of the calls."""
        async with Producer(namesrv) as producer:
            await producer.send(Message("T", b"made"))
        for turn in range(3):
            async with Producer(namesrv) as cold:
                sends = [
                    cold.send(Message("T", b"%d/%d" % (turn, n)), order_key="k") for n in range(30)
                ]
                results = await asyncio.gather(*sends)
            assert len({result.queue for result in results}) == 1
            offsets = [result.queue_offset for result in results]
            assert offsets == list(range(offsets[0], offsets[0] + 30))

    async def test_messages_are_in_order_while_routes_are_slow(
        self, monkeypatch: pytest.MonkeyPatch, namesrv: str
    ) -> None:
        """The first call waits for the heartbeat to a new broker; the next call does not."""
        async with Producer(namesrv) as producer:
            await producer.send(Message("T", b"made"))
        async with Producer(namesrv) as cold:
            greet = cold._session._greet_new_brokers

            async def greet_slowly() -> None:
                await asyncio.sleep(0.05)
                await greet()

            monkeypatch.setattr(cold._session, "_greet_new_brokers", greet_slowly)

            async def send(number: int) -> int:
                await asyncio.sleep(number * 0.02)
                message = Message("T", b"%d" % number)
                return (await cold.send(message, order_key="k")).queue_offset

            offsets = await asyncio.gather(*map(send, range(4)))
            assert list(offsets) == sorted(offsets)

    async def test_a_cancelled_send_does_not_block_the_next(self, namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            sends = [
                asyncio.ensure_future(producer.send(Message("T", b""), order_key="k"))
                for _ in range(3)
            ]
            await asyncio.sleep(0)
            sends[1].cancel()
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(outcomes[1], asyncio.CancelledError)
            assert not any(isinstance(outcomes[n], BaseException) for n in (0, 2))
            assert not producer._ordered._locks

    async def test_queue_and_order_key_exclude_each_other(self, namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            with pytest.raises(ConfigError, match="order_key = 'k': chooses a queue"):
                await producer.send(Message("T", b""), queue=QUEUE, order_key="k")


async def test_a_decide_that_returns_no_outcome_is_an_error(namesrv: str) -> None:
    def forget(message: Message) -> Outcome:
        return None  # type: ignore[return-value]

    async with Producer(namesrv) as producer:
        what = r"the return value of decide = None: expected Outcome\.COMMIT"
        with pytest.raises(ConfigError, match=what):
            await producer.send_in_transaction(Message("T", b""), forget)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"namesrv": "localhost"}, "namesrv = 'localhost': expected HOST:PORT, such as 127"),
        ({"namesrv": "h:99999"}, r"namesrv = 'h:99999': the port must be in 1\.\.65535"),
        ({"namesrv": "http://h:80/x"}, "namesrv = .*: expected HOST:PORT"),
        ({"namesrv": " ; "}, "namesrv = ' ; ': expected HOST:PORT, or several"),
        ({"namesrv": []}, r"namesrv = \[\]: expected HOST:PORT"),
        ({"group": "a b"}, "group = 'a b': 1 to 120 letters, digits"),
        ({"group": ""}, "group = '': 1 to 120 letters"),
        ({"retries": -1}, "retries = -1: expected 0 or more"),
        ({"timeout_s": 0}, r"timeout_s = 0: expected a number of seconds from 0\.001 to"),
        (
            {"timeout_s": float("nan")},
            r"timeout_s = nan: expected a number of seconds from 0\.001 to",
        ),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_wrong_arguments_of_a_producer_are_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Producer(**({"namesrv": "127.0.0.1:1"} | wrong))
