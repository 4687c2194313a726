"""The slots of messages."""

from pathlib import Path

from tests.broker.brokers import SMALL
from tests.broker.timer.bench import Bench

from firetrail.format.files.timer import WAIT_MAX_MS, WHEEL_SLOTS

DAY_MS = 86_400_000


async def test_a_slot_is_no_farther_away_than_a_unit_can_say(tmp_path: Path) -> None:
    """With long slots, the window could be longer: a unit has four bytes for the time."""
    bench = Bench(
        tmp_path,
        wheel_slots=WHEEL_SLOTS,
        store=SMALL.replace(file_reserved_hours=60 * 24),
        timer_precision_ms=60_000,
        timer_max_delay_s=60 * 86_400,
    )
    bench.send(b"far", 29 * DAY_MS)
    bench.run()
    unit = bench.timer._files.log.unit(0)
    assert unit is not None and DAY_MS < unit.delay_ms <= WAIT_MAX_MS
    bench.pass_time(29 * DAY_MS + 60_000, DAY_MS)
    assert bench.bodies == [b"far"]
    await bench.close()
