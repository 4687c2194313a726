"""The confirmed end: it outlives a kill, only grows, and never claims what a log has lost."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine, crash_image

from firetrail import FlushMode, Message, StoreConfig
from firetrail.format.files.confirmed import (
    CONFIRMED_SIZE,
    NO_DOUBT,
    SLOT_SIZE,
    ConfirmedEnd,
    decode_confirmed,
    decode_slot,
    encode_slot,
)
from firetrail.format.names import CONFIRMED, OFFSET_MAX
from firetrail.store.broker_store import BrokerStore
from firetrail.store.repair.backup import back_up
from firetrail.store.repair.truncation import LogCut, truncate_store
from firetrail.store.root.confirmed_file import ConfirmedFile, read_confirmed, shorten_confirmed
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM, Clock, System

pytestmark = pytest.mark.stepped_threads
BOOT = bytes(range(16))
SYNC_MASTER = StoreConfig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
SLAVE = StoreConfig(role=BrokerRole.SLAVE)


class Rebooted(Clock):
    """The clock of a machine that has started again."""

    def boot_id(self) -> bytes:
        return BOOT


class TestSlot:
    def test_a_slot_is_decoded_as_it_was_encoded(self) -> None:
        end = ConfirmedEnd(1 << 40, True, 77, BOOT)
        assert decode_slot(encode_slot(end, 9).ljust(SLOT_SIZE, b"\0")) == (9, end)

    def test_every_flipped_bit_is_noticed(self) -> None:
        slot = encode_slot(ConfirmedEnd(123, False, NO_DOUBT, BOOT), 9)
        for bit in range(8 * len(slot)):
            damaged = bytearray(slot)
            damaged[bit // 8] ^= 1 << bit % 8
            assert decode_slot(bytes(damaged)) is None

    def test_every_prefix_and_an_empty_slot_are_nothing(self) -> None:
        slot = encode_slot(ConfirmedEnd(123), 9)
        assert [decode_slot(slot[:size]) for size in range(len(slot))] == [None] * len(slot)
        assert decode_slot(bytes(SLOT_SIZE)) is None


class Bench:
    def __init__(self, root: Path) -> None:
        self.machine = Machine()
        self.root = root

    def open(self) -> ConfirmedFile:
        return ConfirmedFile(self.machine.system, self.root)

    def read(self) -> ConfirmedEnd | None:
        return read_confirmed(self.machine.system, self.root)

    def offset(self) -> int:
        found = self.read()
        assert found is not None
        return found.offset


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert not bench.machine.files.open_files


def test_what_is_noted_can_be_read_without_a_sync(bench: Bench) -> None:
    assert bench.read() is None
    file = bench.open()
    assert file.found is None
    bench.machine.files.forget()
    for offset in (100, 300, 200):
        file.note(offset)
    assert not bench.machine.files.calls
    assert bench.offset() == 300
    assert (bench.root / CONFIRMED).stat().st_size == CONFIRMED_SIZE
    file.close()
    again = bench.open()
    assert again.end.offset == 300
    again.close()


def test_a_torn_slot_leaves_the_one_before(bench: Bench) -> None:
    file = bench.open()
    file.note(100)
    file.note(200)
    file.close()
    content = bytearray((bench.root / CONFIRMED).read_bytes())
    found = decode_confirmed(bytes(content))
    assert found is not None
    content[found[0] % 2 * SLOT_SIZE + 20] ^= 1
    (bench.root / CONFIRMED).write_bytes(content)
    assert bench.offset() == 100
    file = bench.open()
    file.note(300)
    assert bench.offset() == 300
    file.close()


def test_it_is_synced_only_if_it_has_changed(bench: Bench) -> None:
    file = bench.open()
    file.note(100)
    for _ in range(2):
        file.sync()
    assert bench.machine.files.count("sync", CONFIRMED) == 1
    file.close()


def test_without_replicas_the_whole_log_counts_as_of_the_next_opening(bench: Bench) -> None:
    file = bench.open()
    file.note(100)
    file.note(OFFSET_MAX)
    file.close()
    file = bench.open()
    file.begin(500, is_decided=False)
    assert (file.end.offset, file.end.is_all) == (500, False)
    file.close()


@pytest.mark.parametrize(("log_end", "kept"), [(50, 50), (500, 100)])
def test_a_decided_cut_gives_up_what_is_after_it(bench: Bench, log_end: int, kept: int) -> None:
    shorten_confirmed(bench.machine.system, bench.root, 7)
    assert bench.read() is None  # no file is created
    file = bench.open()
    file.note(100)
    file.close()
    shorten_confirmed(bench.machine.system, bench.root, log_end)
    assert bench.offset() == kept


def test_a_log_that_java_went_on_with_is_not_measured_by_the_file(bench: Bench) -> None:
    file = bench.open()
    file.note(100)
    file.begin(50, is_decided=False, by_java=True, may_lack_tail=True)
    assert file.end[:3] == (50, False, NO_DOUBT)
    file.close()


def test_the_place_of_a_power_failure_is_kept_until_the_log_is_whole(bench: Bench) -> None:
    file = bench.open()
    file.note(100)
    file.begin(80, is_decided=False, may_lack_tail=True)
    file.begin(90, is_decided=False, may_lack_tail=True)
    assert (file.end.offset, file.end.doubtful_from) == (100, 80)
    file.settle()
    assert file.end.doubtful_from == NO_DOUBT
    file.close()


# -- in a store -------------------------------------------------------------------------------


def confirmed_store(root: Path, *bodies: bytes, flush: FlushMode = FlushMode.ASYNC) -> int:
    """Write messages to a master that a replica confirms; return the end of the log."""
    with BrokerStore.open(root, SYNC_MASTER.replace(flush=flush), system=SYSTEM) as store:
        for body in bodies:
            store.embedded.try_put(Message("t", body, wait_for_flush=False))
        store.replica_acks.note("replica", store.log.max_offset)
        assert store.log.confirmed_end == store.log.max_offset
        return store.log.max_offset


def killed(root: Path, image: Path, flush: FlushMode = FlushMode.ASYNC) -> int:
    """Leave the image of a killed master; return what its replica had confirmed."""
    with BrokerStore.open(root, SYNC_MASTER.replace(flush=flush), system=SYSTEM) as store:
        store.embedded.try_put(Message("t", b"a", wait_for_flush=False))
        store.replica_acks.note("replica", store.log.max_offset)
        confirmed = store.log.max_offset
        store.embedded.try_put(Message("t", b"b", wait_for_flush=False))
        crash_image(root, image)
        return confirmed


def test_a_killed_store_knows_what_was_confirmed(tmp_path: Path) -> None:
    confirmed = killed(tmp_path / "m", tmp_path / "k")
    for config in (SLAVE, SYNC_MASTER):
        shutil.copytree(tmp_path / "k", tmp_path / config.role.value)
        with BrokerStore.open(tmp_path / config.role.value, config, system=SYSTEM) as store:
            assert store.log.confirmed_end == confirmed < store.log.max_offset
            assert store.log.is_confirmed_end_known
            assert not store.shortfall


def test_without_the_file_it_is_unknown_until_replicas_or_the_master_tell(tmp_path: Path) -> None:
    confirmed = killed(tmp_path / "m", tmp_path / "k")
    (tmp_path / "k" / CONFIRMED).unlink()
    shutil.copytree(tmp_path / "k", tmp_path / "s")
    with BrokerStore.open(tmp_path / "k", SYNC_MASTER, system=SYSTEM) as store:
        assert not store.log.is_confirmed_end_known
        store.replica_acks.note("replica", confirmed)
        assert store.log.is_confirmed_end_known
    with BrokerStore.open(tmp_path / "s", SLAVE, system=SYSTEM) as store:
        assert not store.log.is_confirmed_end_known
        store.log_copy().confirm(confirmed)
        assert store.log.is_confirmed_end_known
        assert store.log.confirmed_end == confirmed


def test_a_replica_keeps_no_more_than_its_log_has(tmp_path: Path) -> None:
    end = confirmed_store(tmp_path, b"a")
    with BrokerStore.open(tmp_path, SLAVE, system=SYSTEM) as store:
        store.log_copy().confirm(end + 1000)
        assert store.log.confirmed_end == end
        found = read_confirmed(SYSTEM, tmp_path)
        assert found is not None
        assert found.offset == end


def test_a_master_that_needs_no_replica_counts_its_whole_log(tmp_path: Path) -> None:
    alone = SYNC_MASTER.replace(auto_in_sync_replicas=True, min_in_sync_replicas=1)
    with BrokerStore.open(tmp_path / "m", alone, system=SYSTEM, in_group=True) as store:
        store.replica_acks.require(frozenset())
        store.embedded.put(Message("t", b"alone"))
        end = store.log.max_offset
        store.replica_acks.require(frozenset({2}))
        assert store.log.confirmed_end == end  # it was acknowledged without member 2
        crash_image(tmp_path / "m", tmp_path / "k")
        store.replica_acks.require(frozenset())
        store.embedded.put(Message("t", b"alone again"))
        crash_image(tmp_path / "m", tmp_path / "later")
        later = store.log.max_offset
    for name, confirmed in (("k", end), ("later", later)):
        with BrokerStore.open(tmp_path / name, SLAVE, system=SYSTEM, in_group=True) as store:
            assert store.log.confirmed_end == confirmed


def test_a_single_store_has_no_file(tmp_path: Path) -> None:
    with BrokerStore.open(tmp_path, StoreConfig(), system=SYSTEM) as store:
        store.embedded.put(Message("t", b"a"))
        assert store.log.is_confirmed_end_known
    assert not (tmp_path / CONFIRMED).exists()


def lose_the_log(root: Path) -> None:
    """Zero the log, as a power failure does with what was not synced."""
    file = next((root / "commitlog").iterdir())
    content = file.read_bytes()
    file.write_bytes(content[:50] + bytes(len(content) - 50))
    (root / "firetrail.watermark").unlink()


def test_a_replica_that_has_lost_confirmed_messages_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    confirmed = killed(tmp_path / "m", tmp_path / "k")
    lose_the_log(tmp_path / "k")
    for _ in range(2):
        with BrokerStore.open(tmp_path / "k", SLAVE, system=SYSTEM) as store:
            assert store.shortfall == (
                f"the log ends at 0, but replicas had confirmed it up to {confirmed}"
            )
            assert store.log.confirmed_end == 0
    assert f"had confirmed it up to {confirmed}: {confirmed} B are missing" in caplog.text
    with BrokerStore.open(tmp_path / "k", SYNC_MASTER, system=SYSTEM) as store:
        assert not store.shortfall
    assert "given up, because this broker is the master now" in caplog.text
    with BrokerStore.open(tmp_path / "k", SLAVE, system=SYSTEM) as store:
        assert not store.shortfall


@pytest.mark.parametrize("flush", FlushMode)
def test_an_unclean_stop_before_the_machine_started_again_is_doubtful_without_syncs(
    tmp_path: Path, flush: FlushMode
) -> None:
    confirmed = killed(tmp_path / "m", tmp_path / "k", flush)
    config = SLAVE.replace(flush=flush)
    for system in (System(clock=Rebooted()), SYSTEM):  # it stays so after another restart
        with BrokerStore.open(tmp_path / "k", config, system=system) as store:
            if flush is FlushMode.SYNC:
                assert not store.shortfall
            else:
                assert "may lack messages" in store.shortfall
                assert f"from offset {store.log.max_offset} on" in store.shortfall
    with BrokerStore.open(tmp_path / "k", config, system=SYSTEM) as store:
        store.log_copy().confirm(store.log.max_offset + 1)
        assert bool(store.shortfall) is (flush is not FlushMode.SYNC)
        store.log_copy().confirm(confirmed)  # the log has what the master knows to be confirmed
        assert not store.shortfall


def test_a_clean_stop_leaves_no_doubt(tmp_path: Path) -> None:
    confirmed_store(tmp_path, b"a")
    with BrokerStore.open(tmp_path, SLAVE, system=System(clock=Rebooted())) as store:
        assert not store.shortfall


def test_a_cut_store_does_not_miss_what_was_cut(tmp_path: Path) -> None:
    with BrokerStore.open(tmp_path, SYNC_MASTER, system=SYSTEM) as store:
        ends = []
        for body in (b"a", b"b"):
            store.embedded.try_put(Message("t", body, wait_for_flush=False))
            ends.append(store.log.max_offset)
        store.replica_acks.note("replica", ends[-1])
    truncate_store(SYSTEM, tmp_path, LogCut(0, ends[0]))
    with BrokerStore.open(tmp_path, SLAVE, system=SYSTEM) as store:
        assert store.log.confirmed_end == store.log.max_offset == ends[0]
        assert not store.shortfall


def test_a_backup_of_an_open_store_has_everything_that_it_calls_confirmed(tmp_path: Path) -> None:
    with BrokerStore.open(tmp_path / "m", SYNC_MASTER, system=SYSTEM) as store:
        for body in (b"a", b"b"):
            store.embedded.try_put(Message("t", body, wait_for_flush=False))
        store.replica_acks.note("replica", store.log.max_offset)
        back_up(SYSTEM, tmp_path / "m", tmp_path / "b", StoreConfig())
    found = read_confirmed(SYSTEM, tmp_path / "b")
    assert found is not None
    with BrokerStore.open(tmp_path / "b", SLAVE, system=SYSTEM) as store:
        assert found.offset == store.log.max_offset
        assert not store.shortfall
