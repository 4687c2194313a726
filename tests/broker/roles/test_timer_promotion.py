"""Messages with a delivery time when the master changes: none is lost, none comes twice."""

import asyncio
from collections import Counter
from pathlib import Path

from tests.broker.brokers import Talk
from tests.broker.pairs import caught_up, emergency, pair, promote, send
from tests.client.clusters import until


async def timed(talk: Talk, body: bytes, after_ms: int) -> None:
    properties = f"TIMER_DELAY_MS\x01{after_ms}\x02UNIQ_KEY\x01U{body.decode()}\x02"
    answer = await talk.send("T2", body, i=properties)
    assert answer.code == 0, answer.remark


def delivered(talk: Talk) -> Counter[bytes]:
    return Counter(record.body for record in talk.broker.store.read("T2", 0))


async def test_a_promoted_slave_delivers_what_waits(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await timed(old, b"soon", 1)
        await timed(old, b"later", 4_000)
        await until(lambda: delivered(old) == {b"soon": 1})
        slave = new.broker._terms.current.parts.timer
        while (
            slave._files.queue_offset < 2
        ):  # its log has to pass the progress that the master has saved
            await send(old, b"filler")
            await asyncio.sleep(0.2)
        assert slave.delivered == 0
        await timed(old, b"last", 1_000)
        await caught_up(new, old)
        await emergency(group, old, new)
        await until(lambda: delivered(new).total() == 3)
        assert delivered(new) == {b"soon": 1, b"later": 1, b"last": 1}


async def test_a_planned_change_goes_on_delivering(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, old, new):
        for number in range(4):
            await timed(old, b"%d" % number, 1_000 * number + 1)
        await until(lambda: delivered(old).total() >= 1)
        await promote(new)
        await until(lambda: delivered(new).total() >= 4)
        assert set(delivered(new).values()) == {1}
        await timed(new, b"back", 1_500)
        await promote(old)
        await until(lambda: b"back" in delivered(old))
        assert set(delivered(old).values()) == {1}
