"""Pages of zeros in queue and index files: readers notice them, fsck finds and repairs them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.helpers import crash_image
from tests.stores import GOLDEN, NAMES, overwrite, records

from firetrail import Message, Store, StoreConfig
from firetrail.format.files.index import entry_at, slot_at
from firetrail.format.kernels.single import KeyQuestion
from firetrail.format.layout import UNIT
from firetrail.format.names import INVENTORY, WATERMARK
from firetrail.store.inspect.view import StoreView
from firetrail.store.inspect.zeroed_pages import key_gaps, queue_gaps
from firetrail.store.problems import ProblemKind

PAGE = 4096
KEYS = 50
MESSAGES = 1000
SIZES = StoreConfig().for_files(
    commit_log_file_size=1 << 20,
    consume_queue_file_size=1500 * UNIT.size,
    index_slots=5000,
    index_entries=20_000,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gaps") / "store"
    with Store.open(root, SIZES) as store:
        for number in range(MESSAGES):
            store.put(Message("T", b"%d" % number, keys=[f"k{number % KEYS}"]))
        assert store.wait_dispatched(60)
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))


def file_in(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def gaps(root: Path) -> Iterator[tuple[ProblemKind, str]]:
    """Yield the gaps that queries by any of the keys notice."""
    with StoreView.open(root) as view:
        for number in range(KEYS):
            for gap in key_gaps(view, "T", f"k{number}"):
                yield gap.kind, gap.detail


def repaired(root: Path, firetrail: Firetrail) -> None:
    """Check that fsck finds the damage, and that rebuilt queues and index are good."""
    assert firetrail("fsck", root).code == 1
    assert firetrail("fsck", root, "--repair", "rebuild-derived").code == 0
    assert firetrail("fsck", root).code == 0
    assert len(firetrail("dump", root, "--topic", "T", "--json").lines) == MESSAGES
    found = firetrail("query", root, "--topic", "T", "--key", "k7", "--json")
    assert (found.code, len(found.lines)) == (0, MESSAGES // KEYS)


class TestQueues:
    @pytest.mark.parametrize("page", range(MESSAGES * UNIT.size // PAGE + 1))
    @pytest.mark.parametrize("noted", [True, False])
    def test_no_page_is_missed(
        self, root: Path, page: int, noted: bool, firetrail: Firetrail
    ) -> None:
        """A gap at the end of a queue is missed if the end was not noted, as in a store of Java."""
        if not noted:
            (root / INVENTORY).unlink()
        overwrite(file_in(root / "consumequeue/T/0"), page * PAGE, bytes(PAGE))
        result = firetrail("dump", root, "--topic", "T", "--json")
        assert len(result.lines) < MESSAGES
        is_last = page == MESSAGES * UNIT.size // PAGE
        assert result.code == (0 if is_last and not noted else 1)
        if page == 2:
            repaired(root, firetrail)

    def test_what_is_said(self, root: Path, firetrail: Firetrail) -> None:
        overwrite(file_in(root / "consumequeue/T/0"), 4 * PAGE, bytes(PAGE))
        result = firetrail("dump", root, "--topic", "T", "--json")
        assert result.err == (
            "firetrail: consumequeue/T/0/00000000000000000000 at 16380: the queue ends at 819, but "
            "had 1000 messages before; check the store: firetrail fsck\n"
        )
        overwrite(root / WATERMARK, 0, bytes(8))
        with StoreView.open(root) as view:
            assert not list(queue_gaps(view, "T", [0]))  # the last page, and the end is not noted

    def test_what_java_has_changed_since(self, root: Path) -> None:
        """Java may have deleted the topic and created it again."""
        overwrite(file_in(root / "consumequeue/T/0"), 4 * PAGE, bytes(PAGE))
        (root / "lock").write_bytes(b"lock")
        with StoreView.open(root) as view:
            assert not list(queue_gaps(view, "T", [0]))

    def test_units_after_zeros_are_reported(self, root: Path) -> None:
        (root / INVENTORY).unlink()
        overwrite(file_in(root / "consumequeue/T/0"), 3 * PAGE, bytes(PAGE))
        with StoreView.open(root) as view:
            (gap,) = queue_gaps(view, "T", [0])
        assert gap.detail == "the queue ends at 614 with zeros, but more units follow them"

    def test_a_store_that_is_open(self, root: Path) -> None:
        with Store.open(root) as store, StoreView.open(root) as view:
            store.put(Message("T", b"more"))
            assert store.wait_dispatched(60)
            assert not list(queue_gaps(view, "T", [0]))


class TestIndex:
    def test_nothing_is_missing(self, root: Path, tmp_path: Path) -> None:
        assert not list(gaps(root))
        with Store.open(root) as store:
            store.put(Message("T", b"more", keys=["k1"]))
            assert store.wait_dispatched(60)
            assert not list(gaps(root))
            crash_image(root, tmp_path / "crashed")
        assert not list(gaps(tmp_path / "crashed"))

    @pytest.mark.parametrize("name", NAMES)
    def test_nothing_is_missing_in_stores_of_java(self, name: str) -> None:
        with StoreView.open(GOLDEN / name) as view:
            for record in records(GOLDEN / name):
                for key in (*record.keys, record.unique_key or "", "none"):
                    assert not list(key_gaps(view, record.topic, key))
            for topic, queue_id in view.queues.pairs():
                assert not list(queue_gaps(view, topic, [queue_id]))

    @pytest.mark.parametrize("page", range(entry_at(5000, MESSAGES) // PAGE + 1))
    def test_no_page_is_missed(self, root: Path, page: int, firetrail: Firetrail) -> None:
        """Every key of which messages are missing is reported."""
        path = file_in(root / "index")
        overwrite(path, page * PAGE, bytes(PAGE))
        with StoreView.open(root) as view:
            for number in range(KEYS):
                key = f"k{number}"
                found = view.reader.query("T", key, max_count=MESSAGES).buffers
                is_noticed = any(key_gaps(view, "T", key))
                assert is_noticed or len(found) == MESSAGES // KEYS
        if page in (0, 2, 6):  # header, slots, entries
            repaired(root, firetrail)

    def test_what_is_said(self, root: Path, firetrail: Firetrail) -> None:
        path = file_in(root / "index")
        slot = KeyQuestion("T", "k7", 0, 1).key_hash % 5000
        overwrite(path, slot_at(slot) // PAGE * PAGE, bytes(PAGE))
        result = firetrail("query", root, "--topic", "T", "--key", "k7", "--json")
        assert (result.code, result.out) == (1, "")
        assert f"index/{path.name} at {slot_at(slot)}: slot {slot} is empty, and " in result.err
        assert "; messages may be missing; check the store: firetrail fsck" in result.err

    def test_a_zeroed_entry_and_a_wrong_header_are_reported(self, root: Path) -> None:
        path = file_in(root / "index")
        good = path.read_bytes()
        overwrite(path, entry_at(5000, 958), bytes(20))  # of k7: 8, 58, … 958
        assert [kind for kind, _ in gaps(root)] == [ProblemKind.INDEX_CHAIN]
        path.write_bytes(good)
        slot = KeyQuestion("T", "k7", 0, 1).key_hash % 5000
        for wrong in (b"\x80\0\0\1", b"\x7f\0\0\1"):
            overwrite(path, slot_at(slot), wrong)
            assert [kind for kind, _ in gaps(root)] == [ProblemKind.INDEX_CHAIN]
        path.write_bytes(good)
        overwrite(path, 0, bytes(40))
        expected = (ProblemKind.INDEX_HEADER, "the header counts no entries, but the file has some")
        assert set(gaps(root)) == {expected}
