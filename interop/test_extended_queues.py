"""Extended consume queues with bitmaps of filters: from a Java broker to Firetrail and back.

The commit log is in two folders, which both brokers know from ``storePathCommitLog``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from interop import commands
from interop.servers import Servers, our_name_server
from interop.stock import registered
from interop.test_takeovers import NAME, serving

from firetrail.client import Admin, Message, MessageQueue, Producer, PushConsumer, Received, by_sql
from firetrail.format.files.extended_unit import ExtendedUnit
from firetrail.format.names import (
    COMMIT_LOG,
    CONSUME_QUEUE_EXT,
    LOG_PATHS,
    SCHEDULE_TOPIC,
    segment_name,
)
from firetrail.format.values.bloom import BloomFilter, has_bits
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.remoting.messages.filter_bodies import BloomFilterData, ConsumerFilterTable
from firetrail.settings.config_file import CONSUMER_FILTERS, ConfigFile
from firetrail.store.inspect.view import StoreView
from firetrail.system import SYSTEM

TOPIC, GROUP, EXPRESSION = "Taken", "SQL", "n > 6"
SETTINGS = """\
enableConsumeQueueExt=true
enableCalcFilterBitMap=true
mappedFileSizeConsumeQueueExt=512
"""
FIRST = ConsumeFromWhere.FIRST_OFFSET
EACH = 10
BLOOM = BloomFilter(20, 32)
LIMIT_S = 360.0


async def send(namesrv: str, first: int) -> None:
    """Send messages to queue 0, a third of which match the filter."""
    async with Producer(namesrv) as producer:
        for number in range(first, first + EACH):
            message = Message(
                TOPIC,
                b"%d" % number,
                tags="even" if number % 2 == 0 else "odd",
                properties={"n": str(number % EACH)},
            )
            await producer.send(message, queue=MessageQueue(TOPIC, NAME, 0))


def matching(end: int) -> set[int]:
    return {number for number in range(end) if number % EACH > 6}


async def heard(namesrv: str, group: str, expression: str, wanted: set[int], first: int) -> None:
    """Consume with a filter, send more messages while it is registered, and check what comes."""
    got: set[int] = set()

    def listener(message: Received) -> None:
        got.add(int(message.body))

    subscription = by_sql(TOPIC, expression) if " " in expression else expression
    wanted_by = {TOPIC: subscription}
    async with PushConsumer(namesrv, group, listener, wanted_by, start=FIRST):
        await asyncio.sleep(1.5)  # the filter counts for messages of later milliseconds
        if first >= 0:
            await send(namesrv, first)
        while not got >= wanted:
            await asyncio.sleep(0.05)
    assert got == wanted


def units(root: Path, topic: str = TOPIC, queue_id: int = 0) -> list[ExtendedUnit]:
    with StoreView.open(root) as view:
        queue = view.queues.open(topic, queue_id)
        assert queue.extension is not None
        found = []
        for offset in range(queue.max_offset):
            unit = queue.unit(offset)
            assert unit is not None
            extended = queue.extension.get(unit.tags_code)
            assert extended is not None, (offset, unit)
            found.append(extended)
        return found


def check(root: Path, messages: int) -> None:
    """Check the files: each unit has its extended unit, and each bitmap has the group or not."""
    levels = "1s 1s 1s 5s"
    code, (report,) = commands.run("fsck", root, "--json", "--delay-levels", levels)
    assert (code, report["problems"]) == (0, [])
    found = units(root)
    assert len(found) == messages
    for number, unit in enumerate(found):
        assert len(unit.bitmap) * 8 == BLOOM.bits
        is_in = has_bits(unit.bitmap, BLOOM.positions(f"{GROUP}#{TOPIC}"))
        assert is_in == (number in matching(messages))
    assert (root / CONSUME_QUEUE_EXT / TOPIC / "0").is_dir()
    table = ConfigFile(SYSTEM, root, CONSUMER_FILTERS).load(ConsumerFilterTable)
    data = table.filter_data_by_topic[TOPIC].group_filter_data[GROUP]
    assert data.expression == EXPRESSION and data.born_time > 0
    positions = list(BLOOM.positions(f"{GROUP}#{TOPIC}"))
    assert data.bloom_filter_data == BloomFilterData(BLOOM.bits, positions)


@pytest.mark.time_limit(LIMIT_S)
async def test_bitmaps_are_handed_over_in_both_directions(tmp_path: Path) -> None:
    java = Servers("v5", tmp_path)
    root = tmp_path / NAME
    paths = f"storePathCommitLog={tmp_path / 'd1'},{tmp_path / 'd2'}\n"
    settings = SETTINGS + paths
    with our_name_server() as namesrv:
        with java.broker(namesrv, NAME, settings=settings):
            await registered(namesrv)
            async with Admin(namesrv) as admin:
                await admin.create_topic(TOPIC, 1)
            await heard(namesrv, GROUP, EXPRESSION, matching(EACH), 0)
            async with Producer(namesrv) as producer:
                await producer.send(Message("Late", b"late", delay_level=4))
        assert os.listdir(tmp_path / "d1") == [segment_name(0)] and not (root / COMMIT_LOG).exists()
        (root / LOG_PATHS).write_text(paths)
        check(root, EACH)
        late = units(root, SCHEDULE_TOPIC, 3)
        assert late[0].tags_code == late[0].store_time + 5000

        with java.our_broker(namesrv, NAME, settings=settings, stop=signal.SIGKILL):
            await serving(namesrv)
            await heard(namesrv, GROUP, EXPRESSION, matching(2 * EACH) - matching(EACH), EACH)
            await heard(namesrv, "new", EXPRESSION, matching(2 * EACH), -1)
            await heard(namesrv, "tags", "odd", set(range(1, 2 * EACH, 2)), -1)
            await asyncio.sleep(2)  # until the housekeeper has synced the queues
        with java.broker(namesrv, NAME, settings=settings):
            await serving(namesrv)
            before = matching(2 * EACH)
            await heard(namesrv, GROUP, EXPRESSION, matching(3 * EACH) - before, 2 * EACH)
            await heard(namesrv, "newer", EXPRESSION, matching(3 * EACH), -1)
            await heard(namesrv, "newer-tags", "odd", set(range(1, 3 * EACH, 2)), -1)
        check(root, 3 * EACH)
