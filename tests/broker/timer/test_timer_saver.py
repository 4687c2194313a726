"""Saves of the timer, also those that are interrupted."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.timer.bench import Bench
from tests.helpers import PATIENCE_S

from firetrail.format.files.timer import LOG, WHEEL


async def test_a_stop_waits_for_the_save_that_is_under_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send(b"0", 5_000)
    bench.run()
    with bench.files.stalled("sync", LOG) as reached:
        task = asyncio.ensure_future(bench.timer._saver.save())
        await asyncio.to_thread(reached.wait, PATIENCE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert bench.timer._saver.is_saving
    bench.timer._tasks = [task]
    await bench.timer.stop()
    assert not bench.timer._saver.is_saving
    bench.store.close()
    bench = Bench(tmp_path, clock=bench.clock)
    assert bench.timer.waiting == 1
    await bench.close()


async def test_a_rebuild_that_is_interrupted_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its new wheel lacks what was not added yet, although the old progress would fit the log."""
    bench = Bench(tmp_path / "a")
    for number in range(30):
        bench.send(b"%d" % number, 5_000)
    bench.run()
    bench = await bench.restarted(lambda folder: (folder / WHEEL).unlink())
    monkeypatch.setattr("firetrail.broker.timer.timer_service.BATCH_SIZE", 10)
    assert bench.timer.step() == 0
    await bench.save()  # saves nothing yet
    bench.run(steps_max=20)
    assert bench.timer._files.log.end > 0
    crashed = bench.killed(tmp_path / "b")
    assert caplog.text.count("the timer is rebuilt") == 2
    crashed.pass_time(7_000, 500)
    assert crashed.bodies == [b"%d" % number for number in range(30)]
    await crashed.close()
    caplog.clear()
    again = Bench(tmp_path / "b", clock=crashed.clock)
    assert "the timer is rebuilt" not in caplog.text
    await again.close()
