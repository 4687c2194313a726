"""Records that name another queue, or another number, than they had."""

import json
import shutil
from pathlib import Path

import pytest
from tests.helpers import crash_image, eventually
from tests.store.checks import DELAYS
from tests.stores import field_position, flip, log_file, overwrite

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import FlushFailedError, StoreDamagedError, StoreReadOnlyError
from firetrail.format.record import Record
from firetrail.store.inspect.view import StoreView
from firetrail.store.repair.losses import find_faults
from firetrail.store.repair.misplaced_records import MisplacedRecord
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.system import System

CONFIG = StoreConfig().for_files(
    commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
)
COUNT = 60
QUEUE_ID, QUEUE_OFFSET = 15, 27


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    root = tmp_path_factory.mktemp("misplaced") / "store"
    with Store.open(root, CONFIG) as store:
        for number in range(COUNT):
            store.put(Message("T", b"%04d" % number, queue_id=number % 3, keys=["k"]))
        assert store.wait_dispatched()
        stored = [message for queue in range(3) for message in store.read("T", queue)]
    return root, sorted(stored, key=lambda message: message.physical_offset)


@pytest.fixture
def root(made: tuple[Path, list[Record]], tmp_path: Path) -> Path:
    return shutil.copytree(made[0], tmp_path / "store")


@pytest.fixture
def stored(made: tuple[Path, list[Record]]) -> list[Record]:
    return made[1]


def change(root: Path, message: Record, at: int, value: int) -> None:
    path, start = log_file(root, message.physical_offset)
    overwrite(path, start + at, bytes([value]))


def found(root: Path) -> list[MisplacedRecord]:
    with StoreView.open(root) as view:
        return list(find_faults(view).misplaced.values())


def places(root: Path) -> list[tuple[int, int | None]]:
    return [(record.physical_offset, record.number) for record in found(root)]


def lose_queues(root: Path) -> None:
    """Remove the queues, so that only the neighbours of a record show where it belongs."""
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "firetrail.watermark").unlink()


@pytest.mark.parametrize("queues", [True, False])
def test_a_good_store_has_no_misplaced_records(queues: bool, root: Path) -> None:
    if not queues:
        lose_queues(root)
    assert found(root) == []


@pytest.mark.parametrize("queues", [True, False])
@pytest.mark.parametrize("number", [2, 9, 11, 200])
def test_a_wrong_number_is_corrected(
    number: int, queues: bool, root: Path, stored: list[Record]
) -> None:
    hit = stored[30]  # message 10 of queue 0
    change(root, hit, QUEUE_OFFSET, number)
    if not queues:
        lose_queues(root)
    (record,) = found(root)
    assert (record.physical_offset, record.queue_offset, record.number) == (
        hit.physical_offset,
        number,
        10,
    )
    assert record.detail == f"is marked as message {number} of T/0, but is 10"


def test_two_wrong_numbers_in_a_row_are_corrected(root: Path, stored: list[Record]) -> None:
    for number in (30, 33):
        change(root, stored[number], QUEUE_OFFSET, 100 + number)
    assert places(root) == [(stored[30].physical_offset, 10), (stored[33].physical_offset, 11)]


def test_a_record_of_another_queue_is_found(root: Path, stored: list[Record]) -> None:
    """Message 10 of the first of three queues is marked as one of the second queue."""
    change(root, stored[30], QUEUE_ID, 1)
    assert places(root) == [
        (stored[30].physical_offset, None),
        (stored[33].physical_offset, 11),  # as it says, but message 10 is gone
    ]
    assert found(root)[1].detail == "is message 11 of T/0, but 10 was expected"


def test_the_queue_of_a_message_whose_number_is_taken(root: Path, stored: list[Record]) -> None:
    change(root, stored[32], QUEUE_ID, 1)
    assert places(root)[0] == (stored[32].physical_offset, None)


def test_nobody_can_tell_which_of_two_it_is(root: Path, stored: list[Record]) -> None:
    """Then both records stay."""
    change(root, stored[30], QUEUE_ID, 1)
    lose_queues(root)
    assert places(root) == [(stored[31].physical_offset, 10), (stored[33].physical_offset, 11)]


def test_the_topic_when_older_messages_have_expired(root: Path, stored: list[Record]) -> None:
    with Store.open(root, CONFIG) as store:
        assert store.delete_expired(forced=True)
        first = store.log_range[0]
    hit = next(message for message in stored[10:] if message.physical_offset > first)
    path, start = log_file(root, hit.physical_offset)
    flip(path, field_position(path.read_bytes(), int(path.name), start, "topic"))
    assert places(root)[0] == (hit.physical_offset, None)
    assert "message 2" in found(root)[0].detail or hit.queue_offset > 2


def test_a_topic_created_again_is_in_order(tmp_path: Path) -> None:
    for number in range(3):
        with Store.open(tmp_path, CONFIG) as store:
            store.put(Message("T", b"%d" % number))
            store._engine.queues.open("T", 0).next_offset = 0
    assert found(tmp_path) == []


def test_queues_of_batches_are_numbered_otherwise(tmp_path: Path) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        for number in range(4):
            store.put(Message("T", b"%d" % number))
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    content = bytearray((tmp_path / "commitlog" / f"{0:020}").read_bytes())
    at = 0
    for number in (0, 5, 12, 14):
        content[at + QUEUE_OFFSET] = number
        at += int.from_bytes(content[at : at + 4], "big")
    (tmp_path / "commitlog" / f"{0:020}").write_bytes(content)
    assert len(found(tmp_path)) == 3
    (tmp_path / "batchconsumequeue" / "T" / "0").mkdir(parents=True)
    assert found(tmp_path) == []


def test_a_message_that_expired_is_not_missed(root: Path) -> None:
    with Store.open(root, CONFIG) as store:
        assert store.delete_expired(forced=True)
    assert found(root) == []
    lose_queues(root)
    assert found(root) == []


@pytest.mark.parametrize(("at", "value"), [(QUEUE_ID, 1), (QUEUE_OFFSET, 77), (QUEUE_ID, 99)])
def test_a_dry_run_says_what_the_repair_says(
    at: int, value: int, root: Path, stored: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    change(root, stored[30], at, value)
    reported = []
    for words in (["--dry-run"], []):
        assert main(["fsck", str(root), "--repair", "rebuild-derived", *words]) == 1
        reported.append(capsys.readouterr().err)
    assert reported[0] == reported[1]
    assert f"(record {stored[30].physical_offset}): the record is marked as message" in reported[0]
    assert "nothing was changed; restore the file from a copy, or copy every good" in reported[0]
    assert "'firetrail salvage STORE --into DIR'" in reported[0]
    assert not list(root.glob("repair-*"))


def test_a_salvage_reports_them(
    root: Path, stored: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(root, stored[30], QUEUE_ID, 1)
    change(root, stored[41], QUEUE_OFFSET, 77)
    assert main(["salvage", str(root), "--into", str(tmp_path / "one")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == [
        f"left out: the record at {stored[30].physical_offset}, which is marked as message 10 of "
        "T/1, where it does not fit, and belongs to another queue",
        f"kept: the record at {stored[33].physical_offset}, which is message 11 of T/0, "
        "but 10 was expected",
        f"kept: the record at {stored[41].physical_offset}, which is marked as message 77 of T/2, "
        "but is 13",
    ]
    assert main(["salvage", str(root), "--into", str(tmp_path / "two"), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)["misplaced"]
    assert [(record["physical_offset"], record["number"]) for record in reported] == places(root)


def test_no_more_lines_than_fit(
    root: Path,
    stored: list[Record],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("firetrail.cli.stores.salvage.MISPLACED_SHOWN", 1)
    change(root, stored[30], QUEUE_ID, 1)
    assert main(["salvage", str(root), "--into", str(tmp_path / "saved")]) == 0
    assert capsys.readouterr().out.splitlines()[2] == "1 record more out of order, see --json"


def test_a_log_that_is_cut_ends_before_the_first(root: Path, stored: list[Record]) -> None:
    change(root, stored[30], QUEUE_ID, 1)
    done = repair_store(System(), root, Repair.TRUNCATE_LOG, DELAYS)
    assert any(f"the log now ends at {stored[30].physical_offset}" in line for line in done)
    assert main(["fsck", str(root)]) == 0


def test_a_start_that_cannot_derive_a_queue(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", CONFIG) as store:
        for number in range(20):
            store.put(Message("T", b"%04d" % number))
        root = crash_image(tmp_path / "s", tmp_path / "crashed")
        hit = list(store.read("T"))[10]
    shutil.rmtree(root / "consumequeue", ignore_errors=True)  # there if the dispatcher was quick
    (root / "abort").write_bytes(b"")
    (root / "checkpoint").unlink(missing_ok=True)
    change(root, hit, QUEUE_ID, 1)
    with pytest.raises(StoreDamagedError, match="queue T/0 has 10 units") as caught:
        Store.open(root, CONFIG)
    assert "'firetrail salvage STORE --into DIR'" in str(caught.value)
    assert main(["salvage", str(root), "--into", str(tmp_path / "saved")]) == 0
    with Store.open(tmp_path / "saved", CONFIG) as store:
        assert len(list(store.read("T"))) == 19


def test_a_put_that_cannot_be_dispatched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    store = Store.open(root, CONFIG)
    for number in range(5):
        store.put(Message("T", b"%d" % number))
    assert store.wait_dispatched()
    store._engine.queues.open("T", 0).next_offset = 9
    store.put(Message("T", b"far"))
    eventually(lambda: bool(store.refusal))
    with pytest.raises(StoreReadOnlyError) as caught:
        store.put(Message("T", b"refused"))
    # fsck names the repair, as tested for every kind of problem.
    reported = "'firetrail fsck STORE' says which, and names the repair; reads continue"
    assert str(caught.value).endswith(reported) and "rebuild-derived" not in str(caught.value)
    with pytest.raises(FlushFailedError):
        store.close()
    assert main(["fsck", str(root)]) == 1
    reported = capsys.readouterr().out
    assert f"to repair it: 'firetrail salvage {root} --into DIR'" in reported
    assert main(["salvage", str(root), "--into", str(tmp_path / "saved")]) == 0
    with Store.open(tmp_path / "saved", CONFIG) as store:
        assert [message.body for message in store.read("T")][:5] == [b"%d" % n for n in range(5)]
