"""Repairs do what was asked for, keep what they remove, and leave a store that checks clean."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from tests.helpers import FaultyFiles, crash_image, tree

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import StoreDamagedError, StoreError, StoreLockedError
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.walk import RecordBatch
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.system import System

DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
MESSAGES = 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store of several files."""
    config = StoreConfig().for_files(
        commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
    )
    with Store.open(tmp_path / "store", config) as store:
        for number in range(MESSAGES):
            store.put(Message("T", b"%04d" % number, tags="a", keys=["k"]))
    return tmp_path / "store"


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)


def repaired(root: Path, choice: Repair) -> list[str]:
    return repair_store(System(), root, choice, DELAYS)


def bodies(root: Path) -> list[bytes]:
    with Store.open(root) as store:
        return [message.body for message in store.read("T")]


def kept(root: Path) -> Path:
    (folder,) = root.glob("repair-*")
    return folder


def test_queues_and_index_are_rebuilt(root: Path) -> None:
    unit = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    flip(unit, 3)
    assert main(["fsck", str(root), "--json"]) == 1
    damaged = unit.read_bytes()
    repaired(root, Repair.REBUILD_DERIVED)
    assert main(["fsck", str(root), "--json"]) == 0
    assert (kept(root) / unit.relative_to(root)).read_bytes() == damaged
    assert bodies(root) == [b"%04d" % number for number in range(MESSAGES)]


@pytest.mark.parametrize("choice", Repair)
def test_the_file_sizes_of_lost_queues_are_kept(root: Path, choice: Repair) -> None:
    sizes = [(root / name).stat().st_size for name in first_files(root)]
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    if choice is Repair.TRUNCATE_LOG:
        flip(root / "commitlog" / f"{4096:020d}", 4)
    done = repaired(root, choice)
    assert [(root / name).stat().st_size for name in first_files(root)] == sizes
    assert not any("show their size" in line for line in done)


def first_files(root: Path) -> list[Path]:
    """The first consume-queue file and the first index file."""
    return [root / "consumequeue" / "T" / "0" / f"{0:020d}", min((root / "index").iterdir())]


def test_unknown_file_sizes_are_reported(root: Path) -> None:
    """As in a store of RocketMQ, which keeps no list of its files."""
    shutil.rmtree(root / "consumequeue")
    (root / "firetrail.inventory").unlink()
    done = repaired(root, Repair.REBUILD_DERIVED)
    assert (
        "no queue file was left to show their size: the new ones have 6000000 bytes; a broker "
        "with another mappedFileSizeConsumeQueue must be set to this value"
    ) in done


def test_the_log_ends_before_its_first_damage(root: Path) -> None:
    log = root / "commitlog" / f"{4096:020d}"
    before = log.read_bytes()
    flip(log, 4)
    with pytest.raises(StoreDamagedError, match="no good record here"):
        repaired(root, Repair.REBUILD_DERIVED)
    done = repaired(root, Repair.TRUNCATE_LOG)
    assert any("the log now ends at 4096" in line for line in done)
    assert main(["fsck", str(root), "--json"]) == 0
    left = bodies(root)
    assert left == [b"%04d" % number for number in range(len(left))]
    assert 0 < len(left) < MESSAGES
    copies = sorted(path.name for path in (kept(root) / "commitlog").iterdir())
    assert copies[0] == f"{4096:020d}"
    assert (kept(root) / "commitlog" / copies[0]).read_bytes()[5:] == before[5:]


def test_dropped_messages_can_be_read(root: Path) -> None:
    """The folder of the repair is laid out as a store."""
    log = root / "commitlog" / f"{0:020d}"
    record = int.from_bytes(log.read_bytes()[:4], "big")
    flip(log, 2 * record + 90)  # in the third message's body
    before = tree(root)
    repaired(root, Repair.TRUNCATE_LOG)
    assert bodies(root) == [b"0000", b"0001"]
    assert tree(kept(root)) == {k: v for k, v in before.items() if k != "lock"}
    with StoreView.open(kept(root)) as view:
        assert sum(part.rows for part in view.walk() if isinstance(part, RecordBatch)) == MESSAGES


def test_a_repaired_store_accepts_messages(root: Path) -> None:
    flip(root / "commitlog" / f"{4096:020d}", 4)
    repaired(root, Repair.TRUNCATE_LOG)
    count = len(bodies(root))
    with Store.open(root) as store:
        assert store.put(Message("T", b"more")).queue_offset == count
    assert bodies(root)[-1] == b"more"
    assert main(["fsck", str(root), "--json"]) == 0


def test_leftovers_of_a_killed_repair_are_removed(root: Path) -> None:
    for name in ("made", "made.building"):
        (root / "repair-20260101T000000000Z" / name / "consumequeue").mkdir(parents=True)
    repaired(root, Repair.REBUILD_DERIVED)
    assert sorted(path.name for path in kept(root).iterdir()) == [
        "consumequeue",
        "firetrail.inventory",
        "firetrail.watermark",
        "index",
    ]
    assert len(bodies(root)) == MESSAGES


def test_a_good_log_is_not_cut(root: Path) -> None:
    with pytest.raises(StoreError, match="nothing to cut"):
        repaired(root, Repair.TRUNCATE_LOG)
    assert not list(root.glob("repair-*"))


def test_a_store_in_use_is_left_alone(root: Path) -> None:
    with Store.open(root), pytest.raises(StoreLockedError):
        repaired(root, Repair.REBUILD_DERIVED)


def test_the_repair_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(root / "commitlog" / f"{4096:020d}", 4)
    assert main(["fsck", str(root), "--repair", "truncate-log", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["ok"] and reported["repaired"]


def test_a_repair_must_be_chosen(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fsck", str(root), "--repair", "everything"])
    assert "choose from rebuild-derived, truncate-log" in capsys.readouterr().err.replace("'", "")


class TestWhatIsCut:
    @pytest.fixture(params=["missing", "short", "empty", "last", "hole", "unreadable"])
    def damaged(self, request: pytest.FixtureRequest, root: Path) -> tuple[Path, int]:
        """Return a store with one kind of damage, and the number of messages before it."""
        files = sorted((root / "commitlog").iterdir())
        with StoreView.open(root) as view:
            offsets = [
                offset
                for part in view.walk()
                if isinstance(part, RecordBatch)
                for offset in part.columns.column(0)[: part.rows].tolist()
            ]
        second, last = files[1], files[-1]
        good = sum(offset < 4096 for offset in offsets)
        content = second.read_bytes()
        if request.param == "missing":
            second.unlink()
        elif request.param == "short":
            second.write_bytes(content[: offsets[good + 3] - 4096 + 10])
            good += 3
        elif request.param == "empty":
            second.write_bytes(b"")
        elif request.param == "last":
            flip(last, offsets[-1] - int(last.name) + 4)
            good = MESSAGES - 1
        elif request.param == "hole":
            at = offsets[good + 5] - 4096
            second.write_bytes(content[:at] + bytes(100) + content[at + 100 :])
            good += 5
        else:
            second.write_bytes(b"\xff" * 4096)
        return root, good

    def test_the_rest_is_a_good_store(self, damaged: tuple[Path, int]) -> None:
        root, good = damaged
        assert main(["fsck", str(root)]) == 1
        repaired(root, Repair.TRUNCATE_LOG)
        assert main(["fsck", str(root)]) == 0
        assert bodies(root) == [b"%04d" % number for number in range(good)]
        with Store.open(root) as store:
            assert store.put(Message("T", b"more")).queue_offset == good
        assert main(["fsck", str(root)]) == 0

    def test_a_second_repair_is_refused(self, damaged: tuple[Path, int]) -> None:
        root, _ = damaged
        repaired(root, Repair.TRUNCATE_LOG)
        with pytest.raises(StoreError, match="nothing to cut"):
            repaired(root, Repair.TRUNCATE_LOG)


def test_a_crashed_store_is_repaired(root: Path, tmp_path: Path) -> None:
    with Store.open(root) as store:
        for number in range(5):
            store.put(Message("T", b"later %d" % number))
        store.wait_dispatched()
        end = store.log_range[1]
        crashed = crash_image(root, tmp_path / "crashed")
    log = sorted((crashed / "commitlog").iterdir())[-1]
    content = bytearray(log.read_bytes())
    content[end - int(log.name) :][:4] = b"\xff" * 4
    log.write_bytes(content)
    repaired(crashed, Repair.REBUILD_DERIVED)
    assert (crashed / "abort").exists()  # its log is still to be recovered
    with Store.open(crashed) as store:
        assert len(list(store.read("T"))) == MESSAGES + 5
    flip(crashed / "commitlog" / f"{4096:020d}", 4)
    (crashed / "abort").write_bytes(b"")
    repaired(crashed, Repair.TRUNCATE_LOG)
    with StoreView.open(crashed) as view:
        assert view.state is StoreState.CLOSED
    assert main(["fsck", str(crashed)]) == 0


def test_without_queues_no_message_is_forgotten(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "firetrail.watermark").unlink()
    repaired(root, Repair.REBUILD_DERIVED)
    assert len(bodies(root)) == MESSAGES
    assert main(["fsck", str(root)]) == 0


def test_a_wrong_body_does_not_keep_queues_from_being_rebuilt(root: Path) -> None:
    flip(root / "commitlog" / f"{0:020d}", 90)
    (root / "consumequeue" / "T" / "0" / f"{0:020d}").write_bytes(b"")
    repaired(root, Repair.REBUILD_DERIVED)
    with StoreView.open(root) as view:
        assert len(view.tails) == 1 and view.tails["T", 0].max_offset == MESSAGES


def test_queue_offsets_continue_after_a_repair(root: Path) -> None:
    """This includes queues whose messages have expired or are dropped."""
    with Store.open(root) as store:
        store.put(Message("old", b"first"))
        for number in range(150):
            store.put(Message("T", b"%d" % number))
        store.put(Message("old", b"last"))
    with Store.open(root) as store:
        while store.delete_expired(forced=True):
            pass
        low = store.log_range[0]
    assert low > 20_000
    damage = root / "commitlog" / f"{low:020d}"
    flip(damage, 4)
    done = repaired(root, Repair.TRUNCATE_LOG)
    reported = "queue old/0 has no messages in the log and continues with number 1"
    assert any(reported in line for line in done)
    with Store.open(root) as store:
        assert store.put(Message("old", b"next")).queue_offset == 1
        assert store.put(Message("T", b"next")).queue_offset > MESSAGES
    assert main(["fsck", str(root)]) == 0


def test_a_queue_that_cannot_be_read_starts_over(root: Path) -> None:
    shutil.copytree(root / "consumequeue" / "T", root / "consumequeue" / "U")
    (root / "consumequeue" / "U" / "0" / f"{0:020d}").write_bytes(b"short")
    done = repaired(root, Repair.REBUILD_DERIVED)
    assert any("queue U/0 could not be read" in line for line in done)


@pytest.mark.parametrize("content", [b"", b"\xff" * 4096, None])
def test_a_bad_checkpoint_is_replaced(content: bytes | None, root: Path) -> None:
    if content is not None:
        (root / "checkpoint").write_bytes(content)
    flip(root / "commitlog" / f"{4096:020d}", 4)
    repaired(root, Repair.TRUNCATE_LOG)
    assert (kept(root) / "checkpoint").exists()
    assert main(["fsck", str(root)]) == 0
    assert len(bodies(root)) > 0


@pytest.mark.parametrize("choice", list(Repair))
def test_interrupted_anywhere_it_can_be_repeated(
    choice: Repair, root: Path, tmp_path: Path
) -> None:
    if choice is Repair.TRUNCATE_LOG:
        flip(root / "commitlog" / f"{4096:020d}", 300)
        flip(root / "commitlog" / f"{4096:020d}", 4)
    flip(root / "consumequeue" / "T" / "0" / f"{0:020d}", 3)
    whole = copy(root, tmp_path / "whole")
    repaired(whole, choice)
    wanted = bodies(whole)
    for operation in ("sync_folder", "sync", "write", "copy_range"):
        for skip in range(1, 200, 9):
            again = copy(root, tmp_path / f"{operation}-{skip}")
            files = FaultyFiles()
            files.fail(operation, errno.EIO, skip=skip)
            try:
                repair_store(System(files), again, choice, DELAYS)
            except (OSError, StoreError):
                repair_after(again, choice)
                assert bodies(again) == wanted
                assert main(["fsck", str(again)]) == 0
            else:
                break


def copy(root: Path, target: Path) -> Path:
    shutil.copytree(root, target)
    return target


def repair_after(root: Path, choice: Repair) -> None:
    """Repair what an interrupted repair has left; it may have been as good as done."""
    try:
        repaired(root, choice)
    except StoreError as error:
        assert "nothing to cut" in str(error)
        repaired(root, Repair.REBUILD_DERIVED)
