"""Copies of a far message: it is stored again and again, and delivered once."""

from pathlib import Path

import pytest
from tests.broker.timer.bench import Bench

from firetrail.format.files.timer import WHEEL
from firetrail.format.properties import decode_properties


async def test_a_rebuild_with_a_longer_window_delivers_far_messages_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_roll_window_slots=3)
    bench.send(b"far", 12_000)
    bench.pass_time(6_000, 500)
    assert len(bench.waiting) > 1
    bench = await bench.restarted(
        lambda folder: (folder / WHEEL).unlink(), timer_roll_window_slots=100
    )
    bench.run()
    assert bench.timer.waiting == 1  # a Java broker that takes over delivers what is in the wheel
    bench.pass_time(12_000, 500)
    assert bench.bodies == [b"far"]
    await bench.close()


@pytest.mark.parametrize("body", [b"0", b"other"])
async def test_marks_and_their_message_are_stored_again_each(tmp_path: Path, body: bytes) -> None:
    """All of them have the same unique key, and a mark has the body 0."""
    bench = Bench(tmp_path, timer_roll_window_slots=3)
    bench.send(body, 12_000, UNIQ_KEY="K")
    bench.run()
    bench.send(b"0", 12_000, UNIQ_KEY="K", TIMER_DEL_UNIQKEY="T+K")
    bench.send(b"0", 12_000, UNIQ_KEY="K", TIMER_DEL_UNIQKEY="K")
    bench.pass_time(14_000, 500)
    assert bench.bodies == []
    marks = [record.properties.get("TIMER_DEL_UNIQKEY") for record in bench.waiting]
    assert marks.count("T+K") == marks.count("K") == marks.count(None) > 1
    await bench.close()


async def test_a_far_message_that_the_previous_master_stored_again_is_not_repeated(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, timer_roll_window_slots=3)
    bench.send(b"far", 10_000)
    bench.run()
    waiting = bench.waiting[0]
    assert bench.timer._delivery.roll(waiting, bench.clock.ms, bench.clock.ms)
    assert bench.store.embedded.wait_dispatched()
    assert not bench.timer._delivery.roll(waiting, bench.clock.ms, bench.clock.ms)
    bench.pass_time(12_000, 500)
    assert bench.bodies == [b"far"]
    await bench.close()


async def test_a_message_of_another_topic_is_no_copy(tmp_path: Path) -> None:
    """Somebody may send to T2 only, and knows key, body and time of a message for T."""
    bench = Bench(tmp_path, timer_roll_window_slots=3)
    sent = bench.send(b"a", 10_000)
    properties = {**decode_properties(sent.raw_properties or b""), "TIMER_ROLL_TIMES": "9"}
    del properties["TIMER_OUT_MS"]
    bench.put("T2", b"a", properties)
    assert bench.store.embedded.wait_dispatched()
    waiting, _ = bench.waiting
    assert not bench.timer._delivery.was_rolled(waiting)
    bench.pass_time(12_000, 500)
    assert bench.bodies == [b"a"]
    await bench.close()


async def test_a_copy_that_consumers_do_not_see_yet_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new master does not know yet that replicas have the last messages of the former one."""
    bench = Bench(tmp_path)
    bench.send(b"a", 1_000)
    bench.run()
    waiting = bench.waiting[0]
    bench.pass_time(3_000, 500)
    assert bench.store.embedded.wait_dispatched()
    monkeypatch.setattr(bench.store._engine.reader, "_shown", lambda: 0)
    assert bench.timer._delivery.has_copy(waiting, "T")
    await bench.close()
