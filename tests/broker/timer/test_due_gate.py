"""A slot is read when all records that were stored before its end are in their slots."""

from pathlib import Path

import pytest
from tests.broker.timer.bench import Bench

from firetrail.broker.timer.due_gate import DueGate
from firetrail.broker.timer.timer_service import BATCH_SIZE


def test_the_gate_waits_for_the_records_of_the_previous_call_only() -> None:
    gate = DueGate()
    assert gate.open_ms(1_000, 5, 5) == 1_000
    assert gate.open_ms(2_000, 5, 9) < 2_000
    assert gate.open_ms(3_000, 8, 20) < 2_000
    assert gate.open_ms(4_000, 9, 30) == 2_000  # the new records belong to later slots
    assert gate.open_ms(5_000, 29, 40) == 2_000
    assert gate.open_ms(5_000, 30, 50) == 4_000
    assert gate.open_ms(6_000, 50, 50) == 6_000
    assert gate.open_ms(5_500, 50, 50) == 5_500  # the clock was set back


@pytest.mark.parametrize("is_added", [False, True])
async def test_a_backlog_of_records_delays_no_recall(tmp_path: Path, is_added: bool) -> None:
    """The mark has to be in the slot when it is read, and so has its message."""
    bench = Bench(tmp_path)
    bench.send(b"first", 60_000)
    bench.run()
    bodies = [b"%d" % number for number in range(BATCH_SIZE)]
    if is_added:
        bench.send(b"recalled", 5_500)
        bench.run()
    for body in bodies:
        bench.send(body, 60_000)
    if not is_added:
        bench.send(b"recalled", 5_500)
    bench.send(b"0", 5_500, TIMER_DEL_UNIQKEY="T+Urecalled")
    bench.clock.advance(7_000)
    bench.run()
    assert bench.bodies == []
    bench.pass_time(60_000, 10_000)
    assert bench.bodies == [b"first", *bodies]
    await bench.close()


async def test_a_slot_waits_for_records_that_are_not_dispatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    bench.send(b"recalled", 5_500)
    bench.run()
    monkeypatch.setattr(bench.store.queues, "numbered_end", lambda topic, queue_id: 2)
    bench.clock.advance(7_000)
    for _ in range(5):
        assert 0 < bench.timer.step() < 0.1
    monkeypatch.undo()
    bench.clock.advance(-7_000)
    bench.send(b"0", 5_500, TIMER_DEL_UNIQKEY="T+Urecalled")
    bench.clock.advance(7_000)
    bench.run()
    assert bench.bodies == []
    await bench.close()
