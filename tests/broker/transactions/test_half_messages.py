"""Half messages whose producers are not connected."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import talking
from tests.broker.halves import COMMIT, IMPATIENT, PROPERTIES, ROLLBACK, begin, end, stored
from tests.client.clusters import until

from firetrail.format.kernels.draft import Message
from firetrail.format.record import decode_message
from firetrail.format.system_topics import CHECKED_OFTEN_TOPIC, HALF_TOPIC
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.retention.retention import HOUR_MS


class TestProducersThatAreAway:
    """Only checks that were sent are counted."""

    async def test_half_messages_wait_for_a_producer(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        asked: list[RemotingCommand] = []

        def take(connection: Connection, request: RemotingCommand) -> None:
            asked.append(request)

        async with talking(
            config=IMPATIENT, client_handlers={RequestCode.CHECK_TRANSACTION_STATE: take}
        ) as talk:
            await begin(talk)
            await asyncio.sleep(0.01)
            for _ in range(20):
                await talk.broker.check_transactions()
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            assert stored(talk, HALF_TOPIC) == [b"body"]
            assert stored(talk, CHECKED_OFTEN_TOPIC) == []
            await talk.beat(producer="PG")
            await talk.broker.check_transactions()
            await until(lambda: asked)
            assert decode_message(asked[0].content).properties["TRANSACTION_CHECK_TIMES"] == "1"
        warning = "producer group PG (of gRPC clients: topic PG) has 1 open transaction, but no"
        assert caplog.text.count(warning) == 1

    async def test_half_messages_wait_as_long_as_the_log_is_kept(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with talking() as talk:
            await begin(talk)
            transactions = talk.broker._parts.transactions
            begun = transactions._now_ms()
            for hours, given_up in ((71, []), (73, [b"body"])):
                later = begun + hours * HOUR_MS
                monkeypatch.setattr(transactions, "_now_ms", lambda: later)  # noqa: B023
                await talk.broker.check_transactions()
                await asyncio.to_thread(talk.broker.store.wait_dispatched)
                assert stored(talk, CHECKED_OFTEN_TOPIC) == given_up
            (record,) = talk.broker.store.read(CHECKED_OFTEN_TOPIC)
            assert f"moved to {CHECKED_OFTEN_TOPIC} as message {record.message_id}" in caplog.text
        assert "is given up after 72 hours without a producer to ask" in caplog.text

    async def test_deleted_half_messages_get_no_end_mark(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with talking(config=IMPATIENT) as talk:
            await begin(talk)
            end_of_log = talk.broker.store.log_range[1]
            log = type(talk.broker.broker_store.log)
            monkeypatch.setattr(log, "min_offset", property(lambda _: end_of_log))
            for _ in range(2):
                await talk.broker.check_transactions()
        assert caplog.text.count("1 half messages of producer group PG were deleted with old") == 1

    @pytest.mark.parametrize("is_killed", [False, True])
    async def test_waiting_half_messages_are_moved_to_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
    ) -> None:
        """A half message far back is stored again as the same transaction, uncounted."""
        monkeypatch.setattr("firetrail.broker.transactions.transactions.FAR_BACK", 2)
        async with talking(tmp_path, config=IMPATIENT) as talk:
            first = await begin(talk)
            for number in range(2, 5):
                properties = PROPERTIES.replace("U1", f"U{number}")
                half = await talk.send("T1", b"other", e=2, f=4, i=properties)
                assert await end(talk, half, ROLLBACK) == 0
            await asyncio.sleep(0.01)
            if is_killed:
                monkeypatch.setattr(talk.broker._parts.transactions, "_end_mark", _nothing)
                with pytest.raises(InterruptedError):
                    await talk.broker.check_transactions()
            else:
                await talk.broker.check_transactions()
                await talk.broker.check_transactions()
                assert talk.broker.offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 4
            await asyncio.to_thread(talk.broker.store.wait_dispatched)
            *_, copy = talk.broker.store.read(HALF_TOPIC)
            assert (copy.queue_offset, copy.body) == (4, b"body")
            assert copy.properties["TRANSACTION_CHECK_TIMES"] == "0"
        async with talking(tmp_path) as talk:
            for _ in range(2):
                assert await end(talk, first, COMMIT) == 0
            assert stored(talk, "T1", 2) == [b"body"]
            assert talk.broker._parts.transactions._open == {}

    async def test_copies_of_many_waiting_half_messages_are_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Copies follow each other, which must not cause further copies."""
        monkeypatch.setattr("firetrail.broker.transactions.transactions.FAR_BACK", 6)

        async with talking(config=IMPATIENT) as talk:
            for number in range(12):
                properties = PROPERTIES.replace("U1", f"U{number}")
                await talk.send("T1", b"open", e=2, f=4, i=properties)
            await asyncio.sleep(0.01)
            transactions = talk.broker._parts.transactions
            for _ in range(20):
                half = await talk.send("T1", b"other", e=2, f=4, i=PROPERTIES)
                await end(talk, half, ROLLBACK)
                await talk.broker.check_transactions()
            copies = transactions._next - 32
            assert 12 <= copies <= 12 * (20 // 6 + 1)
            for _ in range(20):
                await talk.broker.check_transactions()
            assert transactions._next == 32 + copies
            assert len(transactions._open) <= 2 * 12  # by the first offset and the last


def _nothing(offset: int) -> Message:
    raise InterruptedError


async def test_a_half_message_of_another_topic_is_no_copy(tmp_path: Path) -> None:
    """Somebody may send to T2 only, and knows group and key of a transaction in T1."""
    async with talking(tmp_path) as talk:
        first = await begin(talk)
        properties = f"{PROPERTIES}TRANSACTION_CHECK_TIMES\x011\x02"
        forged = await talk.send("T2", b"forged", e=0, f=4, i=properties)
    async with talking(tmp_path) as talk:
        assert await end(talk, forged, ROLLBACK) == 0
        assert len(talk.broker._parts.transactions._open) == 1
        assert await end(talk, first, COMMIT) == 0
        assert stored(talk, "T1", 2) == [b"body"]
        assert stored(talk, "T2") == []
