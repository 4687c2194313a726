"""SQL92 filters that are evaluated when messages arrive: bitmaps, pulls that use them, the file."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL, Talk, records, talking
from tests.helpers import PATIENCE_S

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.filter import consumer_filters
from firetrail.broker.filter.consumer_filters import ConsumerFilters
from firetrail.format.files import config_json
from firetrail.format.values.bloom import BloomFilter
from firetrail.remoting.messages.bodies import SubscriptionData
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.settings.config_file import CONSUMER_FILTERS, ConfigFile
from firetrail.system import SYSTEM

STORE = SMALL.replace(extended_queues=True, extension_file_size=1 << 20)
BROKER = BrokerConfig(filter_bitmaps=True)
BLOOM = BloomFilter(20, 32)


def sql(topic: str, text: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, text, "SQL92", version)


class Clock:
    def __init__(self) -> None:
        self.now = 1000
        self.newest = 0


def filters_in(folder: Path, clock: Clock, *, clean: bool = True) -> ConsumerFilters:
    file = ConfigFile(SYSTEM, folder, CONSUMER_FILTERS)
    return ConsumerFilters(file, BLOOM, lambda: clock.now, lambda: clock.newest, clean=clean)


async def test_the_file_is_that_of_java(tmp_path: Path) -> None:
    clock = Clock()
    filters = filters_in(tmp_path, clock)
    filters.register("G", [sql("T", "a > 1", 7), SubscriptionData("%RETRY%G")])
    await filters.stop()
    written = config_json.loads((tmp_path / "config" / CONSUMER_FILTERS).read_bytes())
    del written["firetrailCrc"]
    assert written == {
        "filterDataByTopic": {
            "T": {
                "groupFilterData": {
                    "G": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [24, 26, 83]},
                        "bornTime": 1000,
                        "clientVersion": 7,
                        "consumerGroup": "G",
                        "deadTime": 0,
                        "expression": "a > 1",
                        "expressionType": "SQL92",
                        "topic": "T",
                    }
                },
                "topic": "T",
            }
        }
    }
    clock.now = 50_000
    again = filters_in(tmp_path, clock)
    data = again.content().filter_data_by_topic["T"].group_filter_data["G"]
    assert (data.born_time, data.dead_time) == (1000, 20_000)
    assert again.bits("T", "G", "a > 1") == (BLOOM.positions("G#T"), 112, 1000)


async def test_a_filter_counts_for_messages_stored_after_it(tmp_path: Path) -> None:
    clock = Clock()
    filters = filters_in(tmp_path, clock)
    clock.newest = 5000  # the clock was set back since
    filters.register("G", [sql("T", "a > 1")])
    bits = filters.bits("T", "G", "a > 1")
    assert bits is not None and bits.since == 5000
    assert filters.bits("T", "G", "a > 2") is None
    assert filters.bits("T", "other", "a > 1") is None
    clock.now = 6000
    filters.register("G", [sql("T", "a > 2", 2)])
    assert filters.bits("T", "G", "a > 1") is None
    changed = filters.bits("T", "G", "a > 2")
    assert changed is not None and changed.since == 6000
    filters.register("G", [sql("T", "a > 2", 3)])
    assert filters.bits("T", "G", "a > 2") == changed
    await filters.stop()


async def test_after_an_unclean_stop_old_bitmaps_prove_nothing(tmp_path: Path) -> None:
    clock = Clock()
    filters = filters_in(tmp_path, clock)
    filters.register("G", [sql("T", "a > 1")])
    await filters.stop()
    clock.newest = 9000
    bits = filters_in(tmp_path, clock, clean=False).bits("T", "G", "a > 1")
    assert bits is not None and bits.since == 9000


async def test_groups_without_consumers_are_forgotten_after_a_day(tmp_path: Path) -> None:
    clock = Clock()
    filters = filters_in(tmp_path, clock)
    filters.register("G", [sql("T", "a > 1"), sql("U", "a > 1")])
    filters.register("G", [sql("T", "a > 1")])  # no longer subscribed to U
    filters.register("H", [sql("T", "a > 1")])
    clock.now += consumer_filters.DEAD_FOR_MS - 1
    filters.unregister("H")
    assert set(filters.content().filter_data_by_topic) == {"T", "U"}
    clock.now += 1
    assert set(filters.content().filter_data_by_topic) == {"T"}
    filters.register("H", [sql("T", "a > 1")])
    clock.now += consumer_filters.DEAD_FOR_MS
    assert set(filters.content().filter_data_by_topic["T"].group_filter_data) == {"G", "H"}
    await filters.stop()


async def test_filters_of_other_settings_are_ignored(tmp_path: Path) -> None:
    clock = Clock()
    filters = filters_in(tmp_path, clock)
    filters.register("G", [sql("T", "a > 1")])
    await filters.stop()
    file = ConfigFile(SYSTEM, tmp_path, CONSUMER_FILTERS)
    other = ConsumerFilters(file, BloomFilter(10, 32), lambda: 2000, lambda: 0, clean=True)
    assert other.bits("T", "G", "a > 1") is None


async def test_there_is_a_limit_of_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_filters, "FILTERS_PER_TOPIC_MAX", 2)
    filters = filters_in(tmp_path, Clock())
    for group in "ABC":
        filters.register(group, [sql("T", "a > 1")])
    assert [filters.bits("T", group, "a > 1") is None for group in "ABC"] == [False, False, True]
    filters.register("A", [sql("T", "a >", 2)])  # a mistake
    assert filters.bits("T", "A", "a > 1") is None
    await filters.stop()


async def test_all_topics_together_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_filters, "FILTERS_MAX", 2)
    filters = filters_in(tmp_path, Clock())
    for topic in ("T1", "T2", "T3"):
        filters.register("A", [sql(each, "a > 1") for each in ("T1", "T2", "T3") if each <= topic])
        filters.unregister("A")  # the filters of consumers that have left are kept for a day
    assert [filters.bits(f"T{n}", "A", "a > 1") is None for n in (1, 2, 3)] == [False, False, True]
    await filters.stop()


async def beat(talk: Talk, group: str, expression: str) -> None:
    await talk.beat(group, subscriptions={"T1": expression}, kind="SQL92")


async def pulled(talk: Talk, group: str) -> tuple[list[bytes], int]:
    """Pull everything for a group; return the bodies, and how many records were examined."""
    examined = 0
    store = talk.broker.broker_store.reads
    get = store.get_hashed

    def counted(*arguments: Any) -> Any:
        nonlocal examined
        result = get(*arguments)
        examined += result.count
        return result

    bodies: list[bytes] = []
    offset = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "get_hashed", counted)
        while True:
            answer = await talk.pull("T1", offset, sysFlag=0, subscription="", consumerGroup=group)
            if answer.code == ResponseCode.SUCCESS:
                bodies += [record.body for record in records(answer.content)]
            elif answer.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
                return bodies, examined
            offset = int(answer.fields["nextBeginOffset"])


async def test_pulls_skip_what_the_bitmap_rules_out(tmp_path: Path) -> None:
    async with talking(tmp_path, BROKER, STORE) as talk:
        await talk.send("T1", b"before", i="n\x019\x02")
        await beat(talk, "CG", "n > 6")
        await asyncio.sleep(0.01)  # messages of later milliseconds
        for n in range(10):
            await talk.send("T1", b"%d" % n, i=f"n\x01{n}\x02")
        await asyncio.to_thread(talk.broker.store.wait_dispatched, PATIENCE_S)
        bodies, examined = await pulled(talk, "CG")
        assert bodies == [b"before", b"7", b"8", b"9"]
        assert examined == 4
        await beat(talk, "Other", "n < 2")
        bodies, examined = await pulled(talk, "Other")
        assert bodies == [b"0", b"1"]
        assert examined == 11  # its filter came after the messages
    async with talking(tmp_path, BROKER, STORE) as talk:
        await beat(talk, "CG", "n > 6")
        await talk.send("T1", b"after", i="n\x015\x02")
        await asyncio.to_thread(talk.broker.store.wait_dispatched, PATIENCE_S)
        bodies, examined = await pulled(talk, "CG")
        assert bodies == [b"before", b"7", b"8", b"9"]
        assert examined == 4  # the filter is known since before the restart
    assert json.loads((tmp_path / "config" / CONSUMER_FILTERS).read_bytes())


async def test_without_the_settings_everything_is_examined(tmp_path: Path) -> None:
    async with talking(tmp_path, BrokerConfig(), STORE) as talk:
        await beat(talk, "CG", "n > 6")
        for n in range(10):
            await talk.send("T1", b"%d" % n, i=f"n\x01{n}\x02")
        await asyncio.to_thread(talk.broker.store.wait_dispatched, PATIENCE_S)
        assert await pulled(talk, "CG") == ([b"7", b"8", b"9"], 10)
    assert not (tmp_path / "config" / CONSUMER_FILTERS).exists()
