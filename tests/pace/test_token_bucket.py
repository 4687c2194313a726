"""Token buckets."""

from firetrail.pace.token_bucket import TokenBucket


def test_a_full_bucket_allows_a_burst_and_then_the_rate() -> None:
    bucket = TokenBucket(10, 2, 100.0)
    assert [bucket.take(5, 100.0) for _ in range(3)] == [True, True, False]
    assert not bucket.take(1, 100.4)
    assert bucket.take(1, 100.5)
    assert not bucket.take(1, 100.5)


def test_a_bucket_does_not_overflow() -> None:
    bucket = TokenBucket(10, 2, 100.0)
    bucket.add(5)
    assert bucket.level(1000.0) == 10
    assert bucket.is_full(1000.0)


def test_a_charge_may_exceed_the_level_and_is_paid_off_by_time() -> None:
    bucket = TokenBucket(10, 2, 100.0)
    bucket.charge(14)
    assert bucket.debt_s(100.0) == 2.0
    assert bucket.debt_s(101.0) == 1.0
    assert bucket.debt_s(110.0) == 0.0


def test_a_changed_rate_counts_since_the_last_refill() -> None:
    bucket = TokenBucket(10, 0, 100.0)
    bucket.charge(10)
    bucket.resize(20, 5)
    assert bucket.level(102.0) == 10
