"""Transactions: half messages, their ends, and checks."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.broker.brokers import SMALL, Talk, talking
from tests.broker.halves import (
    COMMIT,
    IMPATIENT,
    PROPERTIES,
    ROLLBACK,
    UNKNOWN,
    begin,
    end,
    ended,
    half_answer,
    stored,
)
from tests.client.clusters import until
from tests.helpers import crash_image

from firetrail import Store
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.transactions import transactions as module
from firetrail.broker.transactions.transactions import Transactions
from firetrail.errors import FlushFailedError, StoreBusyError
from firetrail.format.kernels.draft import Message
from firetrail.format.record import decode_message
from firetrail.format.system_topics import CHECKED_OFTEN_TOPIC, HALF_TOPIC, OP_TOPIC
from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand


async def test_consumers_do_not_see_a_half_message(talk: Talk) -> None:
    half = await begin(talk)
    assert (half.code, half.fields["transactionId"]) == (0, "U1")
    assert stored(talk, "T1", 2) == []
    assert stored(talk, HALF_TOPIC) == [b"body"]


async def test_a_commit_makes_the_message_visible(talk: Talk) -> None:
    half = await begin(talk)
    assert await end(talk, half, COMMIT) == 0
    (record,) = talk.broker.store.read("T1", 2)
    assert (record.body, record.sys_flag & 12) == (b"body", 8)
    place = decode_message_id(half.fields["msgId"]).physical_offset
    assert record.prepared_offset == place
    (mark,) = talk.broker.store.read(OP_TOPIC)
    assert (mark.body, mark.tags) == (b"0", "d")


async def test_rolled_back_and_undecided_messages_stay_invisible(talk: Talk) -> None:
    half = await begin(talk)
    assert await end(talk, half, UNKNOWN) == 0
    assert stored(talk, OP_TOPIC) == []
    assert await end(talk, half, ROLLBACK) == 0
    assert stored(talk, OP_TOPIC) == [b"0"]
    assert stored(talk, "T1", 2) == []


async def test_a_repeated_end_counts_once(talk: Talk) -> None:
    half = await begin(talk)
    assert [await end(talk, half, COMMIT) for _ in range(3)] == [0, 0, 0]
    assert stored(talk, "T1", 2) == [b"body"]


async def test_an_end_without_a_half_message_is_refused(talk: Talk) -> None:
    half = await begin(talk)
    refused = await ended(talk, half, COMMIT, group="other")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == "The producer group wrong"  # without naming the right one
    plain = await talk.send("T1")
    assert await end(talk, plain, COMMIT) == ResponseCode.SYSTEM_ERROR
    half.fields = {**half.fields, "queueOffset": "7"}
    assert await end(talk, half, COMMIT) == ResponseCode.SYSTEM_ERROR


async def test_half_messages_survive_a_restart(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        half = await begin(talk)
        assert await end(talk, await begin(talk), COMMIT) == 0
    async with talking(tmp_path) as talk:
        assert await end(talk, half, COMMIT) == 0
        assert stored(talk, "T1", 2) == [b"body", b"body"]
        assert await end(talk, half, COMMIT) == 0
        assert stored(talk, "T1", 2) == [b"body", b"body"]


async def test_a_repeated_end_waits_for_the_first(
    monkeypatch: pytest.MonkeyPatch, talk: Talk
) -> None:
    """Neither request is answered before the end is stored, because storing it may still fail."""
    half = await begin(talk)
    disk = asyncio.Event()
    begin_put = talk.broker.broker_store.writer.begin_put

    def slowly(message: Any) -> Any:
        async def fail() -> None:
            await disk.wait()
            raise FlushFailedError("the sync failed")

        return fail()

    with monkeypatch.context() as patch:
        patch.setattr(talk.broker.broker_store.writer, "begin_put", slowly)
        both = [asyncio.ensure_future(end(talk, half, COMMIT)) for _ in range(2)]
        await asyncio.wait(both, timeout=0.2)
        await talk.broker.check_transactions()  # it is open: progress stays before it
        assert talk.broker.offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 0
        disk.set()
        assert await asyncio.gather(*both) == [ResponseCode.SYSTEM_ERROR] * 2
    assert talk.broker.broker_store.writer.begin_put == begin_put
    assert await end(talk, half, COMMIT) == 0
    assert stored(talk, "T1", 2) == [b"body"]


async def check_one_commit(talk: Talk) -> None:
    """Check for open transactions: there are two half messages and one committed message."""
    await asyncio.sleep(0.01)
    await talk.broker.check_transactions()
    assert stored(talk, HALF_TOPIC) == [b"body"] * 2
    assert stored(talk, "T1", 2) == [b"body"]


async def test_a_kill_between_the_copy_and_the_end_mark_commits_one_message(tmp_path: Path) -> None:
    """Both copies are one transaction: the older one must not be committed as a second message."""
    async with talking(tmp_path) as talk:
        half = await begin(talk)
        properties = f"{PROPERTIES}REAL_TOPIC\x01T1\x02REAL_QID\x012\x02"
        copy = Message(
            HALF_TOPIC,
            b"body",
            raw_properties=f"{properties}TRANSACTION_CHECK_TIMES\x011\x02".encode(),
        )
        talk.broker.store.put(copy)
    async with talking(tmp_path, config=IMPATIENT) as talk:
        assert await end(talk, half, COMMIT) == 0
        assert stored(talk, OP_TOPIC) == [b"1"]
        await check_one_commit(talk)
    async with talking(tmp_path, config=IMPATIENT) as talk:
        await check_one_commit(talk)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_the_first_offset_ends_a_transaction_after_a_check_and_a_restart(
    tmp_path: Path, is_killed: bool
) -> None:
    """The broker once took the transaction for an ended one, and stored nothing."""
    killed = tmp_path / "killed"

    async with talking(tmp_path / "live", config=IMPATIENT) as talk:
        await talk.beat(producer="PG")
        half = await begin(talk)
        await asyncio.sleep(0.01)
        await talk.broker.check_transactions()
        await asyncio.to_thread(talk.broker.store.wait_dispatched)
        assert stored(talk, HALF_TOPIC) == [b"body"] * 2
        crash_image(tmp_path / "live", killed)
    async with talking(killed if is_killed else tmp_path / "live") as talk:
        for _ in range(2):  # the second time, it has ended
            assert await end(talk, half, COMMIT) == 0
            assert stored(talk, "T1", 2) == [b"body"]
            assert stored(talk, OP_TOPIC) == [b"0", b"1"]


class TestQuestions:
    async def test_setting_the_clock_back_restarts_the_wait_for_a_check(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A check must come neither at once nor only when the clock has caught up."""
        async with talking(config=BrokerConfig(transaction_timeout_ms=1000)) as talk:
            await talk.beat(producer="PG")
            await begin(talk)
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            transactions = talk.broker._parts.transactions
            yesterday = transactions._now_ms() - 86_400_000
            for later, halves in ((0, 1), (999, 1), (1000, 2)):
                monkeypatch.setattr(transactions, "_now_ms", lambda: yesterday + later)  # noqa: B023
                await talk.broker.check_transactions()
                await asyncio.to_thread(talk.broker.store.wait_dispatched)
                assert stored(talk, HALF_TOPIC) == [b"body"] * halves

    async def test_a_damaged_half_message_does_not_block_others(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with talking(tmp_path, config=IMPATIENT) as talk:
            await talk.beat(producer="PG")
            first = await begin(talk)
            await begin(talk)
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            log = tmp_path / "commitlog" / ("0" * 20)
            with log.open("r+b") as file:
                file.seek(log.read_bytes().index(b"body"))
                file.write(b"B")
            await asyncio.sleep(0.01)
            with pytest.raises(StoreBusyError, match="a record is being repaired"):
                await talk.broker.check_transactions()
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            await until(lambda: talk.broker.store.max_offset(HALF_TOPIC, 0) == 3)
            await until(lambda: all(place.is_given_up for place in talk.broker.broker_store.damage))
            await talk.broker.check_transactions()
            assert await end(talk, first, COMMIT) != 0
        assert "is damaged and given up" in caplog.text

    @pytest.mark.parametrize("properties", [{}, {"REAL_TOPIC": "T1", "REAL_QID": "x"}])
    async def test_a_half_message_without_a_destination_does_not_block_others(
        self, properties: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A program may have put it with an embedded store."""
        with Store.open(tmp_path, SMALL) as store:
            store.put(Message(HALF_TOPIC, b"lost", properties={**properties, "PGROUP": "PG"}))
        async with talking(tmp_path, config=IMPATIENT) as talk:
            await talk.beat(producer="PG")
            (lost,) = talk.broker.store.read(HALF_TOPIC)
            await begin(talk)
            half = half_answer(lost.queue_offset, lost.message_id)
            assert "names no topic" in ((await ended(talk, half, COMMIT)).remark or "")
            await asyncio.sleep(0.01)
            await talk.broker.check_transactions()
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            assert stored(talk, HALF_TOPIC) == [b"lost", b"body", b"body"]
            assert stored(talk, CHECKED_OFTEN_TOPIC) == [b"lost"]
        assert "is given up without a topic and queue to deliver it to" in caplog.text

    async def test_a_producer_is_asked_and_may_still_end_it(self) -> None:
        asked: list[RemotingCommand] = []

        def take(connection: Connection, request: RemotingCommand) -> None:
            asked.append(request)

        async with talking(
            config=IMPATIENT, client_handlers={RequestCode.CHECK_TRANSACTION_STATE: take}
        ) as talk:
            await talk.beat(producer="PG")
            half = await begin(talk)
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            await asyncio.sleep(0.01)
            await talk.broker.check_transactions()
            while not asked:
                await asyncio.sleep(0.01)
            (question,) = asked
            message = decode_message(question.content)
            assert (message.topic, message.queue_id, message.body) == ("T1", 2, b"body")
            assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert question.fields["transactionId"] == "U1"
            again = half.answer(
                fields={
                    "queueOffset": question.fields["tranStateTableOffset"],
                    "msgId": question.fields["offsetMsgId"],
                }
            )
            assert await end(talk, half, COMMIT) == 0  # it has not received the check yet
            assert await end(talk, again, COMMIT) == 0
            assert stored(talk, "T1", 2) == [b"body"]

    async def test_every_check_asks_another_producer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A producer that hangs must not use up all checks while others could answer."""
        asked: list[str] = []
        monkeypatch.setattr(module, "ask", lambda producer, half: asked.append(producer.client_id))
        async with talking(config=IMPATIENT) as talk:
            await talk.beat(producer="PG")
            producers = talk.broker.clients.producers["PG"]
            (first,) = producers.values()
            second = dataclasses.replace(first, client_id="second")
            producers[Connection(Mock())] = second
            await begin(talk)
            for _ in range(2):
                await asyncio.to_thread(talk.broker.store.wait_dispatched)
                await asyncio.sleep(0.01)
                await talk.broker.check_transactions()
            assert sorted(asked) == sorted([first.client_id, "second"])

    async def test_a_half_message_is_given_up_after_too_many_checks(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with talking(config=IMPATIENT) as talk:
            await talk.beat(producer="PG")
            await begin(talk)
            for _ in range(3):
                await asyncio.to_thread(talk.broker.store.wait_dispatched)
                await asyncio.sleep(0.01)
                await talk.broker.check_transactions()
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            assert stored(talk, CHECKED_OFTEN_TOPIC) == [b"body"]
            assert stored(talk, HALF_TOPIC) == [b"body"] * 3
            assert stored(talk, OP_TOPIC) == [b"0", b"1", b"2"]
            await talk.broker.check_transactions()
            assert talk.broker.offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 3
        assert "is given up after 2 checks and moved to TRANS_CHECK_MAX_TIME_TOPIC" in caplog.text

    async def test_checks_of_a_message_that_was_given_up_can_be_resumed(self) -> None:
        async with talking(config=IMPATIENT) as talk:
            await talk.beat(producer="PG")
            await begin(talk)
            for _ in range(3):
                await asyncio.sleep(0.01)
                await talk.broker.check_transactions()
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            (given_up,) = talk.broker.store.read(CHECKED_OFTEN_TOPIC)
            asked = RequestCode.RESUME_CHECK_HALF_MESSAGE
            assert (await talk.ask(asked, msgId=given_up.message_id)).code == 0
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            *_, half = talk.broker.store.read(HALF_TOPIC)
            assert half.properties["TRANSACTION_CHECK_TIMES"] == "0"
            answer = half_answer(half.queue_offset, half.message_id)
            assert await end(talk, answer, COMMIT) == 0
            assert stored(talk, "T1", 2) == [b"body"]
            for wrong in (half.message_id, "nonsense"):
                assert (await talk.ask(asked, msgId=wrong)).code == ResponseCode.SYSTEM_ERROR


@asynccontextmanager
async def ending(folder: Path) -> AsyncIterator[tuple[Talk, RemotingCommand, Transactions]]:
    """A broker with a half message, which must end in the block and stay ended after a restart."""
    async with talking(folder, IMPATIENT) as talk:
        transactions = talk.broker._parts.transactions
        yield talk, await begin(talk), transactions
        assert not transactions._open
        assert (transactions._shares.total, len(transactions._shares)) == (0, 0)
    async with talking(folder, IMPATIENT) as talk:
        assert not talk.broker._parts.transactions._open


def after_first_put(
    patch: pytest.MonkeyPatch,
    transactions: Transactions,
    topic: str,
    act: Callable[[], Awaitable[None]],
) -> None:
    """Act once, when the first message of a topic was stored and its caller does not know yet."""
    put, is_done = transactions._put, False

    async def put_and_act(message: Message) -> Any:
        nonlocal is_done
        result = await put(message)
        if message.topic == topic and not is_done:
            is_done = True
            await act()
        return result

    patch.setattr(transactions, "_put", put_and_act)


async def test_a_transaction_that_ends_while_its_copy_is_stored_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was counted down twice, and its copy was open after a restart."""
    async with ending(tmp_path) as (talk, half, transactions):

        async def commit() -> None:
            assert await end(talk, half, COMMIT) == 0

        (opened,) = transactions._halves()
        after_first_put(monkeypatch, transactions, HALF_TOPIC, commit)
        assert await transactions._store_again(opened) is None


async def test_a_copy_that_is_stored_while_its_transaction_ends_has_an_end_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ending(tmp_path) as (talk, half, transactions):
        (opened,) = transactions._halves()

        async def copy() -> None:
            assert await transactions._store_again(opened) is not None

        after_first_put(monkeypatch, transactions, OP_TOPIC, copy)
        assert await end(talk, half, COMMIT) == 0


async def test_transactions_may_be_refused() -> None:
    async with talking(config=BrokerConfig(reject_transactions=True)) as talk:
        assert (await begin(talk)).code == ResponseCode.NO_PERMISSION


class TestStrangeHalfMessages:
    """Producers may write anything into properties that the broker reads later."""

    async def test_invalid_numbers_in_properties_are_ignored(self, tmp_path: Path) -> None:
        async with talking(tmp_path) as talk:
            for strange in ("TRANSACTION_CHECK_TIMES\x01abc", "TRANSACTION_CHECK_TIMES\x01²"):
                assert (
                    await talk.send("T1", b"odd", f=4, i=f"{PROPERTIES}{strange}\x02")
                ).code == 0
            for strange in ("abc", "²", "9" * 5000):
                wish = f"{PROPERTIES}CHECK_IMMUNITY_TIME_IN_SECONDS\x01{strange}\x02"
                assert (await talk.send("T1", b"odd", f=4, i=wish)).code == 0
        async with talking(tmp_path, config=IMPATIENT) as talk:
            await talk.beat(producer="PG")
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            await talk.broker.check_transactions()
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            assert stored(talk, OP_TOPIC) == [b"0", b"1", b"2", b"3", b"4"]

    async def test_a_half_message_that_cannot_be_stored_again_does_not_block_others(self) -> None:
        async with talking(config=IMPATIENT) as talk:
            await talk.beat(producer="PG")
            await talk.send("T1", b"full", f=4, i=f"{PROPERTIES}K\x01{'v' * 32_631}\x02")
            await begin(talk)
            await asyncio.sleep(0.01)
            await talk.broker.check_transactions()
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            assert stored(talk, OP_TOPIC) == [b"0", b"1"]
            assert stored(talk, HALF_TOPIC) == [b"full", b"body", b"body"]
