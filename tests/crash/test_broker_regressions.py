"""Bugs that the surveys of the broker have found, each in the fewest steps that show it."""

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.pops import pop
from tests.crash.oracle import PREPARED, History
from tests.crash.world.broker_process import BrokerProcess, broker_config
from tests.crash.world.disk import (
    PAGE,
    SECTOR,
    Disk,
    Hook,
    SimulatedFiles,
    Snapshot,
    every_image,
    write_image,
)
from tests.crash.world.simulation import scratch
from tests.crash.world.threads import World

from firetrail.remoting.messages.bodies import DelayOffsets
from firetrail.remoting.wire.codes import RequestCode
from firetrail.settings.config_file import ConfigFile
from firetrail.system import System

NEVER_MS = 3_600_000


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch() as path:
        yield path


def opened(folder: Path, **settings: Any) -> BrokerProcess:
    """Return a process with a broker on a new store, which syncs nothing by itself."""
    folder.mkdir(exist_ok=True)
    config = broker_config("async", flush_interval_ms=NEVER_MS, **settings)
    process = BrokerProcess(Disk(folder), config, History(), seed=1)
    process.open()
    return process


def fail_to_write(path: str) -> Hook:
    def fail(kind: str, name: str) -> None:
        if kind == "write" and name.startswith(path):
            raise OSError(errno.EIO, "failed", name)

    return fail


def after_power_loss(process: BrokerProcess, folder: Path) -> BrokerProcess:
    """Return a broker on an image that has only what is certainly on the disk."""
    process.kill()
    write_image(process.disk.snapshot().image(PAGE, ()), folder)
    again = BrokerProcess(Disk(folder), process.config, History(), seed=2, now=1_000)
    again.open()
    return again


def test_delayed_messages_do_not_count_as_delivered_before_that_is_on_disk(folder: Path) -> None:
    """``delayOffset.json`` on disk was past the message, but the delivered copy was not synced."""
    process = opened(folder / "live")

    async def send() -> None:
        await process.talk.send("T", b"late", e=0, i="DELAY\x011\x02")
        await asyncio.to_thread(process.store.flush)
        await asyncio.sleep(3)  # delivered, and how far deliveries are was saved

    process.run(send())
    assert [record.body for record in process.store.read("T", 0)] == [b"late"]
    again = after_power_loss(process, folder / "again")
    again.run(asyncio.sleep(3))
    assert b"late" in [record.body for record in again.store.read("T", 0)]
    again.close()


def test_what_was_popped_by_a_group_that_was_not_saved_comes_again(folder: Path) -> None:
    """The check-point was dropped: it looked like that of a group that was deleted."""
    process = opened(folder / "live")

    async def send() -> None:
        await process.talk.send("T", b"popped", e=0)
        await asyncio.to_thread(process.store.flush)
        process.files.hooks.append(fail_to_write("config/subscriptionGroup.json"))
        assert len(await pop(process.talk, topic="T", invisibleTime=1_000)) == 1
        await process.broker.offsets.saved()

    process.run(send())
    again = after_power_loss(process, folder / "again")

    async def receive() -> list[bytes]:
        await asyncio.sleep(3)
        return [message.body for message in await pop(again.talk, topic="T")]

    assert again.run(receive()) == [b"popped"]
    again.close()


@pytest.mark.parametrize("properties", ["DELAY\x011\x02", "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"])
def test_the_topic_of_a_message_that_waits_is_not_lost(folder: Path, properties: str) -> None:
    """The message was delivered to a topic without queues, because the topic was not saved."""
    process = opened(folder / "live")

    async def send() -> None:
        flag = PREPARED if properties.startswith("TRAN") else 0
        await process.talk.send("T", b"waits", d=3, e=2, i=properties, f=flag)
        await asyncio.to_thread(process.store.flush)

    process.files.hooks.append(fail_to_write("config/topics.json"))
    process.run(send())
    again = after_power_loss(process, folder / "again")
    assert again.broker.topics.require("T").read_queue_nums == 3
    again.close()


def test_offsets_in_a_topic_that_was_deleted_do_not_come_back(folder: Path) -> None:
    """They were saved some seconds later, and were then past the messages of the next topic."""
    process = opened(folder / "live")

    async def delete() -> int:
        for _ in range(3):
            await process.talk.send("T", b"old", e=0)
        await asyncio.to_thread(process.store.flush)
        process.broker.offsets.commit("CG", "T", 0, 3)
        await process.broker.offsets.saved()
        return (await process.talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code

    assert process.run(delete()) == 0
    again = after_power_loss(process, folder / "again")
    assert again.store.max_offset("T", 0) == 0
    assert again.broker.offsets.get("CG", "T", 0) is None
    again.close()


# -- config files ---------------------------------------------------------------------------------


def test_a_crash_leaves_one_content_or_the_other(folder: Path) -> None:
    """The file was renamed before another took its name: names can be lost one by one."""
    live = folder / "live"
    live.mkdir()
    files = SimulatedFiles(Disk(live), World(1))
    snapshots: list[tuple[int, Snapshot]] = []
    config = ConfigFile(files.system(), live, "topics.json")
    saved = 0

    def keep(kind: str, name: str) -> None:
        snapshots.append((saved, files.disk.snapshot(f"{kind} {name}")))

    files.hooks.append(keep)
    for number in range(1, 5):
        config.save({"offsetTable": {1: number}})
        saved = number
    tried = 0
    for before, snapshot in snapshots:
        for block in (SECTOR, PAGE):
            for how, image in every_image(snapshot, block):
                tried += 1
                write_image(image, folder / f"{tried}")
                found = ConfigFile(System(), folder / f"{tried}", "topics.json").load(DelayOffsets)
                assert found.offset_table.get(1, 0) in (before, before + 1), (snapshot.label, how)
    assert tried > 100


def test_a_file_that_cannot_be_understood_does_not_replace_the_one_before(folder: Path) -> None:
    """A crash after that would have left neither."""
    first = ConfigFile(System(), folder, "topics.json")
    first.save({"offsetTable": {1: 1}})
    first.save({"offsetTable": {1: 2}})
    first.path.write_bytes(b"\0" * 9)
    second = ConfigFile(System(), folder, "topics.json")
    assert second.load(DelayOffsets) == DelayOffsets({1: 1})
    second.save({"offsetTable": {1: 3}})
    assert second.load(DelayOffsets) == DelayOffsets({1: 3})
    second.path.unlink()
    assert ConfigFile(System(), folder, "topics.json").load(DelayOffsets) == DelayOffsets({1: 1})
