"""Delayed messages are delivered when due, across restarts, with the files of RocketMQ."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL, talking
from tests.stores import overwrite

from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.files import config_json
from firetrail.format.layout import UNIT
from firetrail.format.names import SCHEDULE_TOPIC, queue_folder
from firetrail.format.values.delay import DelayLevels
from firetrail.pace import periodic
from firetrail.store.settings.store_config import FlushMode

SOON = SMALL.replace(delay_levels=DelayLevels.parse("0s 1h"))
LATE = "DELAY\x012\x02"


async def test_a_message_is_delivered_when_it_is_due() -> None:
    async with talking(store=SOON) as talk:
        answer = await talk.send("T1", b"body", e=3, i="DELAY\x011\x02TAGS\x01A\x02")
        assert answer.fields["queueId"] == "3"
        (record,) = await talk.pull_until("T1", 1, queueId=3)
        assert (record.body, record.tags, record.queue_id) == (b"body", "A", 3)
        assert record.properties["REAL_TOPIC"] == "T1"
        assert record.properties["DELAY"] == "1"  # Java keeps it, too
        assert record.born_time == 1_700_000_000_000
        by_tag = await talk.pull("T1", 0, queueId=3, subscription="A")
        assert by_tag.content  # the queue has the hash of its tag, not a time


async def test_a_broker_that_syncs_every_put_delivers_by_itself() -> None:
    """There is no other put whose sync would include the delivered message."""
    config = BrokerConfig(offsets_interval_ms=3_600_000, delay_interval_ms=3_600_000)
    async with talking(config=config, store=SOON.replace(flush=FlushMode.SYNC)) as talk:
        await talk.send("T1", b"body", i="DELAY\x011\x02")
        assert [record.body for record in await talk.pull_until("T1", 1)] == [b"body"]


async def test_messages_are_not_delivered_early(tmp_path: Path) -> None:
    async with talking(tmp_path, store=SOON) as talk:
        await talk.send("T1", b"late", i=LATE)
        await talk.send("T1", b"soon", i="DELAY\x011\x02")
        assert [r.body for r in await talk.pull_until("T1", 1)] == [b"soon"]
    offsets = config_json.loads((tmp_path / "config" / "delayOffset.json").read_bytes())
    assert offsets["offsetTable"] == {1: 1, 2: 0}
    # With a shorter delay level the message is overdue.
    async with talking(
        tmp_path, store=SOON.replace(delay_levels=DelayLevels.parse("0s 0s"))
    ) as talk:
        assert [r.body for r in await talk.pull_until("T1", 2)] == [b"soon", b"late"]


async def test_progress_is_saved_periodically(tmp_path: Path) -> None:
    """Messages that are delivered after the last save are delivered again after a kill."""
    config = BrokerConfig(offsets_interval_ms=3_600_000)
    assert config.delay_interval_ms <= 500
    async with talking(tmp_path, config, store=SOON) as talk:
        await talk.send("T1", i="DELAY\x011\x02")
        path = tmp_path / "config" / "delayOffset.json"
        while not path.exists() or config_json.loads(path.read_bytes())["offsetTable"] != {1: 1}:
            await asyncio.sleep(0.01)


async def test_nothing_is_delivered_twice_after_a_clean_stop(tmp_path: Path) -> None:
    async with talking(tmp_path, store=SOON) as talk:
        await talk.send("T1", b"once", i="DELAY\x011\x02")
        await talk.pull_until("T1", 1)
    async with talking(tmp_path, store=SOON) as talk:
        await talk.send("T1", b"last", i="DELAY\x011\x02")
        assert [r.body for r in await talk.pull_until("T1", 2)] == [b"once", b"last"]


async def test_a_message_that_cannot_be_stored_does_not_block_others(tmp_path: Path) -> None:
    async with talking(tmp_path, store=SOON) as talk:
        await talk.send("T1", b"x" * 2000, i=LATE)
        await talk.send("T1", b"small", i=LATE)
    smaller = SOON.replace(delay_levels=DelayLevels.parse("0s 0s"), max_message_size=1000)
    async with talking(tmp_path, store=smaller) as talk:
        assert [r.body for r in await talk.pull_until("T1", 1)] == [b"small"]


async def test_a_damaged_unit_leads_to_its_own_message(tmp_path: Path) -> None:
    """It points to the record of the next one, and says that this was due long ago."""
    async with talking(tmp_path, store=SOON) as talk:
        for body in (b"first", b"other"):
            await talk.send("T1", body, i=LATE)
    path = tmp_path / queue_folder(SCHEDULE_TOPIC, 1) / f"{0:020}"
    units = path.read_bytes()
    overwrite(path, 0, units[UNIT.size : 2 * UNIT.size - 8] + bytes(8))
    async with talking(tmp_path, store=SOON) as talk:
        await talk.send("T1", b"soon", i="DELAY\x011\x02")
        assert [r.body for r in await talk.pull_until("T1", 1)] == [b"soon"]
    due = SOON.replace(delay_levels=DelayLevels.parse("0s 0s"))
    async with talking(tmp_path, store=due) as talk:
        records = await talk.pull_until("T1", 3)
        assert [r.body for r in records] == [b"soon", b"first", b"other"]


async def test_unexpected_errors_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError("too many open files"), ValueError("a bug")]

    async with talking(store=SOON) as talk:
        unit = talk.broker.broker_store.queues.unit

        def failing(*where: Any) -> Any:
            if failures:
                raise failures.pop()
            return unit(*where)

        monkeypatch.setattr(talk.broker.broker_store.queues, "unit", failing)
        monkeypatch.setattr(periodic, "AFTER_ERROR_S", 0.01)
        await talk.send("T1", b"body", i="DELAY\x011\x02")
        assert [r.body for r in await talk.pull_until("T1", 1)] == [b"body"]
        assert not failures
