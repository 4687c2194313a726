"""Records of pops that wait in the timer of a Java broker when its store is taken over."""

import json
from pathlib import Path

from tests.broker.pop.test_pop_checkpoints import NAME, Parts, opened

from firetrail.broker.takeover.java_timer import take_over
from firetrail.format.kernels.draft import Message
from firetrail.system import Files

NOW = 1_000_000
WHEEL = "rmq_sys_wheel_timer"


def note(parts: Parts, tag: str, start: int, out: int, real: str = NAME, **more: object) -> None:
    """A message in Java's timer that is to be delivered at a time."""
    body = {"t": "T", "c": "G", "q": 0, "so": start, "pt": NOW, "bn": "broker-a", **more}
    properties = {"REAL_TOPIC": real, "REAL_QID": "13", "TIMER_OUT_MS": str(out)}
    message = Message(WHEEL, json.dumps(body).encode(), tags=tag, properties=properties)
    parts.store.embedded.put(message)


def checkpoint(parts: Parts, start: int, out: int, count: int = 1, **more: str) -> None:
    note(parts, "ck", start, out, it=60_000, n=count, d=list(range(count)), **more)


def take(parts: Parts, folder: Path) -> None:
    assert parts.store.embedded.wait_dispatched()
    take_over(parts.store, parts.topics, parts.offsets, parts.points, Files(), folder)


def open_offsets(parts: Parts) -> list[set[int]]:
    return [point.open for point in parts.points._open.values()]


async def test_undelivered_records_are_taken_over_once(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes((NOW + 10_000).to_bytes(8, "big") + bytes(48))

    async with opened(tmp_path) as parts:
        parts.put(9)
        checkpoint(parts, 0, NOW + 5_000)  # delivered, and acknowledged
        checkpoint(parts, 1, NOW + 59_000, count=3)
        note(parts, "ack", 1, NOW + 60_000, ao=2)
        checkpoint(parts, 5, NOW + 59_000)
        note(parts, "bAck", 5, NOW + 60_000, aol=[5])
        checkpoint(parts, 7, NOW + 59_000, real="orders")
        known = parts.pop(8)
        note(parts, "ack", 8, NOW + 60_000, ao=8)
        take(parts, tmp_path)
        assert open_offsets(parts) == [{1, 3}]
        assert not known.open
        take(parts, tmp_path)
        assert open_offsets(parts) == [{1, 3}]
    async with opened(tmp_path) as parts:
        take(parts, tmp_path)
        assert open_offsets(parts) == [{1, 3}]
        assert [record.tags for record in parts.read(NAME, 13 % 8)] == ["ck"]
        parts.now += 60_000
        assert [record.body for record in parts.revive()] == [b"1", b"3"]


async def test_records_that_were_stored_again_count_once(tmp_path: Path) -> None:
    """Java stores the records of a slot again in any order."""
    async with opened(tmp_path) as parts:
        parts.put(3)
        checkpoint(parts, 0, NOW + 59_000, count=2)
        note(parts, "ack", 0, NOW + 60_000, ao=1)
        checkpoint(parts, 0, NOW + 59_000, count=2)
        take(parts, tmp_path)
        assert open_offsets(parts) == [{0}]


async def test_a_timer_without_a_check_file_has_delivered_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.put(1)
        checkpoint(parts, 0, NOW + 59_000)
        take(parts, tmp_path)
        assert open_offsets(parts) == [{0}]
