"""A view of some topics opens only their files; its log ends where that of a full view ends."""

from contextlib import closing
from pathlib import Path

import pytest
from tests.helpers import Machine, crash_image, put_all, small_config
from tests.stores import GOLDEN, NAMES, records, truncate

from firetrail import Message, Store
from firetrail.format import columns as col
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.store.inspect.log_tail import read_tail
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.walk import RecordBatch
from firetrail.store.problems import ProblemKind

pytestmark = pytest.mark.stepped_threads


def offsets(view: StoreView) -> list[int]:
    return [
        offset
        for part in view.walk()
        if isinstance(part, RecordBatch)
        for offset in part.columns.column(col.PHYSICAL_OFFSET)[: part.rows].tolist()
    ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("topics") / "store"
    with Store.open(root, small_config(log=1 << 16)) as store:
        for number in range(40):
            store.put(Message(f"T{number:02}", b"x"))
        store.wait_dispatched()
    return root


class TestSomeTopics:
    """A view of some topics costs what these cost, and sees all of their messages."""

    @pytest.fixture
    def root(self, filled: Path, tmp_path: Path) -> Path:
        return crash_image(filled, tmp_path / "store")

    def test_no_other_queue_is_opened(self, root: Path) -> None:
        machine = Machine()
        with StoreView.open(root, system=machine.system, topics=["T20"]) as view:
            assert view.queues.pairs() == list(view.tails) == [("T20", 0)]
            assert view.end == records(root)[-1].physical_offset + records(root)[-1].size
            read_tail(view)
        files = machine.files
        opened = {call.path.parent for call in files.calls if call.operation == "open"}
        queues = root / "consumequeue"
        assert {path for path in opened if queues in path.parents} == {queues / "T20" / "0"}
        assert files.count("open", "T20") == files.count("read_at", "T20") == 1
        # Of others, some folders are listed for the usual size of a file.
        listed = {call.path for call in files.calls if call.operation == "folders"}
        assert len(listed) <= 2 + 2 * 16

    def test_a_view_without_topics_reads_no_queue(self, root: Path) -> None:
        machine = Machine()
        with StoreView.open(root, system=machine.system, topics=()) as view:
            assert not view.tails
            assert len(offsets(view)) == 40
        assert machine.files.count("open", "consumequeue") == 0

    def test_all_queues_are_opened_once_each(self, root: Path) -> None:
        machine = Machine()
        with StoreView.open(root, system=machine.system) as view:
            assert len(view.tails) == 40
        assert machine.files.count("open", "consumequeue") == 40
        assert machine.files.count("read_at", "consumequeue") == 40
        assert machine.files.count("map", "consumequeue") == 0

    @pytest.mark.parametrize("name", NAMES)
    def test_the_end_is_that_of_a_view_of_all(self, name: str) -> None:
        with StoreView.open(GOLDEN / name) as whole:
            topics = whole.queues.topics()
            for chosen in ([], topics[:1], topics[-1:], ["no such topic"], ["../T1"]):
                with StoreView.open(GOLDEN / name, topics=chosen) as view:
                    assert (view.end, view.last_record) == (whole.end, whole.last_record)
                    assert set(view.tails) == {key for key in whole.tails if key[0] in chosen}
                    assert read_tail(view) == read_tail(whole)

    def test_a_log_that_another_store_continued(self, root: Path) -> None:
        """Java leaves the watermark of the previous clean stop."""
        watermark = (root / "firetrail.watermark").read_bytes()
        with Store.open(root) as store:
            put_all(store, [b"later"], topic="Other")
        (root / "firetrail.watermark").write_bytes(watermark)
        for topics in (None, [], ["T03"]):
            with StoreView.open(root, topics=topics) as view:
                assert len(offsets(view)) == 41

    def test_behind_a_hole_that_only_others_reach_over(self, root: Path) -> None:
        """Without a watermark, zeros look like the end if no later message is requested."""
        found = records(root)
        log = root / "commitlog" / ("0" * 20)
        content = bytearray(log.read_bytes())
        hole = found[10]
        content[hole.physical_offset : hole.physical_offset + hole.size] = bytes(hole.size)
        log.write_bytes(content)
        (root / "firetrail.watermark").unlink()
        ends = {}
        for topics in ((), ("T05",), ("T20",), None):
            with StoreView.open(root, topics=topics) as view:
                ends[topics] = view.end
        whole = found[-1].physical_offset + found[-1].size
        assert ends[None] == ends[()] == ends["T20",] == whole
        assert ends["T05",] in (whole, hole.physical_offset)  # it has no later message

    def test_much_log_of_other_topics_is_not_followed(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (root / "firetrail.watermark").unlink()
        machine = Machine()
        with StoreView.open(root, system=machine.system, topics=["T00"]) as view:
            assert len(offsets(view)) == 40
        assert machine.files.count("open", "consumequeue") == 1
        monkeypatch.setattr("firetrail.store.log.log_end.FOLLOWED_MAX", 1000)
        machine.files.forget()
        with StoreView.open(root, system=machine.system, topics=["T00"]) as view:
            assert len(offsets(view)) == 40
        assert machine.files.count("open", "consumequeue") == 40

    def test_in_use_the_last_message_is_seen_at_once(self, tmp_path: Path) -> None:
        with Store.open(tmp_path, small_config(log=1 << 16)) as store:
            for number in range(40):
                store.put(Message(f"T{number:02}", b"x"))
            store.wait_dispatched()
            machine = Machine()
            for topics in ((), ("T39",), ("T01",)):
                with StoreView.open(tmp_path, system=machine.system, topics=topics) as view:
                    assert (view.state, view.end) == (StoreState.OPEN, store.log_range[1])
            opened = machine.files.count("open", "consumequeue")
            assert opened <= 2 + 3  # those asked for, and the queue of the last record each time

    def test_a_file_of_another_size_among_many_topics(self, root: Path) -> None:
        truncate(root / "consumequeue" / "T00" / "0" / ("0" * 20), 100)
        with StoreView.open(root, topics=["T00", "T01"]) as view:
            assert view.queue_file_size == 200
            assert view.queue_faults["T00", 0].kind is ProblemKind.FILE_SIZE
            assert view.tails["T01", 0].max_offset == 1


def test_units_of_many_queues_are_not_all_kept(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.store.inspect.view._UNITS_KEPT", 10 * UNIT_SIZE)
    machine = Machine()
    with StoreView.open(filled, system=machine.system) as view:
        machine.files.forget()
        for pair in view.queues.pairs():
            with closing(view.open_queue(*pair)) as queue:
                assert queue.last_unit == view.tails[pair].last
    assert machine.files.count("open", "consumequeue") == 40 - 10
