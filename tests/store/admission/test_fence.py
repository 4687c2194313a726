"""A master acknowledges nothing after its lease has ended, however late it looks at the clock."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, ManualClock

from firetrail import FlushMode, Message, PutStatus
from firetrail.errors import NotReplicatedError, StoreReadOnlyError
from firetrail.store.admission.drafter import Batch
from firetrail.store.admission.fence import LeaseFence
from firetrail.store.broker_store import BrokerStore
from firetrail.store.results import OUTCOMES, PutResult
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import System

LEASE_S = 10 * PATIENCE_S
REFUSAL = (
    "this broker does not hold the lease of its group, so another one may be the master; send to "
    "the master that name servers name"
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fence(clock: ManualClock) -> LeaseFence:
    fence = LeaseFence(clock)
    fence.until = clock.since_boot() + LEASE_S
    return fence


@pytest.fixture(params=[BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
def store(
    tmp_path: Path, request: pytest.FixtureRequest, clock: ManualClock, fence: LeaseFence
) -> Iterator[BrokerStore]:
    config = StoreConfig(commit_log_file_size=1 << 20, max_message_size=1000, role=request.param)
    config = config.replace(flush=FlushMode.SYNC, slave_timeout_ms=int(PATIENCE_S * 1000))
    with BrokerStore.open(tmp_path, config, system=System(clock=clock)) as store:
        store.replica_acks.note("a", 1 << 40)
        store.gate.fence = fence
        yield store


def test_messages_are_accepted_while_the_lease_lasts(store: BrokerStore) -> None:
    assert store.embedded.try_put(Message("T", b"1")).ok
    assert store.writer.refusal == ""


def test_messages_are_refused_after_it(store: BrokerStore, clock: ManualClock) -> None:
    clock.advance(int(LEASE_S * 1000))
    for result in (
        store.embedded.try_put(Message("T", b"1")),
        store.embedded.try_put_batch(Batch.of([Message("T", b"1")])),
    ):
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert result.detail == store.writer.refusal == REFUSAL
    assert store.embedded.log_range == (0, 0)
    with pytest.raises(StoreReadOnlyError, match="does not hold the lease"):
        store.embedded.put(Message("T", b"1"))


def test_a_lost_lease_ends_at_once(store: BrokerStore, fence: LeaseFence) -> None:
    fence.until = -math.inf
    assert store.embedded.try_put(Message("T", b"1")).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_a_wall_clock_that_jumps_changes_nothing(store: BrokerStore, clock: ManualClock) -> None:
    clock.set_wall(0)
    assert store.embedded.try_put(Message("T", b"1")).ok
    clock.set_wall(1 << 42)
    assert store.embedded.try_put(Message("T", b"1")).ok


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_message_that_was_appended_in_time_is_not_acknowledged_too_late(
    store: BrokerStore, clock: ManualClock, blocking: bool
) -> None:
    flush = store.log.flush

    def slow_flush(least_pages: int = 0) -> bool:
        clock.advance(int(LEASE_S * 1000))
        return flush(least_pages)

    store.log.flush = slow_flush  # type: ignore[method-assign]
    if blocking:
        result = store.embedded.try_put(Message("T", b"1"))
    else:
        waiting = store.writer.begin_put(Message("T", b"1"))
        assert not isinstance(waiting, PutResult)
        result = await waiting
    assert result.status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert result.detail.startswith("stored, but it may be removed again: this broker does not")
    assert result.queue_offset == 0
    with pytest.raises(NotReplicatedError, match="stored, but it may be removed again"):
        result.require_ok()


def test_a_code_says_whether_something_is_stored() -> None:
    """Clients see the code only, so no code may mean both."""
    stored = {outcome.code for outcome in OUTCOMES.values() if outcome.is_stored}
    refused = {outcome.code for outcome in OUTCOMES.values() if not outcome.is_stored}
    assert stored == {0, 10, 11, 12}
    assert not stored & refused
