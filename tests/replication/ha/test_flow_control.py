"""Flow control of HA connections."""

from firetrail.replication.ha.flow_control import BURST_MIN, BURST_S, RateMeter, TransferRate

RATE = 1_000_000


def test_a_bucket_keeps_to_its_rate() -> None:
    bucket = TransferRate(lambda: RATE, 0.0)
    now, sent, steps = 0.0, 0, 5000
    for step in range(steps):
        now = step / 1000
        allowed = bucket.allowance(now)
        assert allowed is not None
        bucket.take(allowed)
        sent += allowed
    assert sent <= RATE * now + RATE * BURST_S
    assert sent >= RATE * now * 0.95 - RATE * BURST_S


def test_a_pause_allows_one_burst() -> None:
    bucket = TransferRate(lambda: RATE, 0.0)
    assert bucket.allowance(100.0) == RATE * BURST_S


def test_small_amounts_are_collected() -> None:
    bucket = TransferRate(lambda: RATE, 0.0)
    bucket.take(bucket.allowance(10.0) or 0)
    assert bucket.allowance(10.01) == 0
    assert bucket.allowance(10.06) == int(RATE * 0.06)


def test_a_low_rate_still_allows_transfers() -> None:
    bucket = TransferRate(lambda: 1024, 0.0)
    assert bucket.allowance(0.0) == BURST_MIN


def test_heartbeats_count_although_they_are_always_allowed() -> None:
    bucket = TransferRate(lambda: RATE, 0.0)
    bucket.take(RATE)
    assert bucket.allowance(0.9) == 0
    assert bucket.allowance(1.1) != 0


def test_the_rate_can_be_changed_and_removed() -> None:
    rates: list[int | None] = [RATE]
    bucket = TransferRate(lambda: rates[-1], 0.0)
    assert bucket.allowance(1.0) == RATE * BURST_S
    rates.append(None)
    assert bucket.allowance(1.0) is None
    rates.append(2 * RATE)
    assert bucket.allowance(2.0) == 2 * RATE * BURST_S


def test_a_meter_returns_the_last_full_second() -> None:
    meter = RateMeter(0.0)
    meter.note(500, 0.2)
    meter.note(500, 0.9)
    assert meter.per_second(0.95) == 0
    assert meter.per_second(1.0) == 1000
    assert meter.per_second(3.0) == 0
