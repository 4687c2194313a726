"""The check of queues, index and marks: each damage is found at its place."""

import shutil
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers import put_all, small_config
from tests.store.checks import FIRST, checked, found
from tests.stores import GOLDEN, copy_of, flip, overwrite, records, truncate

from firetrail import Message, Store
from firetrail.format.files.checkpoint import CHECKPOINT
from firetrail.format.files.index import entry_at, slot_at
from firetrail.format.files.unit import PRE_BLANK, encode_unit
from firetrail.format.layout import INDEX_ENTRY, INDEX_HEADER, UNIT
from firetrail.format.values.javahash import index_key_hash
from firetrail.store.problems import ProblemKind
from firetrail.store.root.confirmed_file import ConfirmedFile
from firetrail.store.root.watermark import SLOT_SIZE
from firetrail.system import SYSTEM


class TestQueues:
    QUEUE = f"consumequeue/T1/0/{FIRST}"

    @pytest.mark.parametrize(
        ("field", "reported"),
        [("physical_offset", "physical offset"), ("size", "size"), ("tags_code", "tags code")],
    )
    def test_a_wrong_unit_is_reported(self, field: str, reported: str, v4: Path) -> None:
        flip(v4 / self.QUEUE, 2 * UNIT.size + UNIT.offsets[field] + 3)
        report = checked(v4)
        assert found(report) == [(self.QUEUE, 40, 664, ProblemKind.UNIT_WRONG)]
        assert report.problems[0].detail.startswith(reported)

    def test_missing_units_are_one_problem(self, v4: Path) -> None:
        overwrite(v4 / self.QUEUE, 20, bytes(40))
        report = checked(v4)
        assert found(report) == [(self.QUEUE, 20, 332, ProblemKind.UNIT_MISSING)]
        assert "messages 1 to 2 of the queue" in report.problems[0].detail

    def test_a_missing_queue_is_reported(self, v4: Path) -> None:
        shutil.rmtree(v4 / "consumequeue" / "TB")
        report = checked(v4)
        assert found(report) == [(f"consumequeue/TB/0/{FIRST}", 0, 2720, ProblemKind.UNIT_MISSING)]

    def test_units_without_a_record_are_reported(self, v4: Path) -> None:
        units = (v4 / self.QUEUE).read_bytes()
        overwrite(v4 / self.QUEUE, 120, units[:60])
        report = checked(v4)
        assert found(report) == [(self.QUEUE, 120, 0, ProblemKind.UNIT_STRAY)]
        assert "3 units from 6 on" in report.problems[0].detail

    def test_bytes_that_are_no_unit(self, v4: Path) -> None:
        overwrite(v4 / self.QUEUE, 205, b"\1")
        assert found(checked(v4)) == [(self.QUEUE, 200, None, ProblemKind.UNIT_STRAY)]

    def test_a_queue_without_records_is_reported(self, v4: Path) -> None:
        shutil.copytree(v4 / "consumequeue" / "TB", v4 / "consumequeue" / "TX")
        assert found(checked(v4)) == [
            (f"consumequeue/TX/0/{FIRST}", 0, 2720, ProblemKind.UNIT_STRAY)
        ]

    def test_a_changed_blank_unit_is_reported(self, tmp_path: Path) -> None:
        root = copy_of("v4-rebuilt", tmp_path)
        assert (root / self.QUEUE).read_bytes()[:20] == encode_unit(PRE_BLANK)
        flip(root / self.QUEUE, 5 * 20 + 11)
        assert found(checked(root)) == [(self.QUEUE, 100, 0, ProblemKind.UNIT_STRAY)]

    def test_a_topic_created_again_is_a_warning(self, tmp_path: Path) -> None:
        """The Java store numbers its messages from 0 again."""
        with Store.open(tmp_path, small_config()) as store:
            put_all(store, [b"old"] * 3)
        with Store.open(tmp_path, small_config()) as store:
            put_all(store, [b"other"], "U")
            queue = store._engine.queues.open("T", 0)
            queue.next_offset = 0
            store.put(Message("T", b"new"))
            store.wait_dispatched()
        unit = tmp_path / "consumequeue" / "T" / "0" / FIRST
        new = records(tmp_path)[-1]
        content = UNIT.struct.pack(new.physical_offset, new.size, 0)
        unit.write_bytes(content.ljust(200, b"\0"))
        report = checked(tmp_path)
        assert report.ok
        assert [warning.kind for warning in report.warnings] == [ProblemKind.QUEUE_RESTART]


class TestTheIndex:
    @pytest.fixture
    def index(self, v4: Path) -> Path:
        return next((v4 / "index").iterdir())

    @pytest.mark.parametrize("field", list(INDEX_HEADER.offsets))
    def test_a_wrong_header_is_found(self, field: str, v4: Path, index: Path) -> None:
        at = INDEX_HEADER.offsets[field]
        flip(index, at + (3 if field.endswith("count") else 7))
        (problem,) = checked(v4).problems
        assert problem[:4] == (f"index/{index.name}", at, None, ProblemKind.INDEX_HEADER)
        assert field.replace("_", " ") in problem.detail

    def test_a_negative_header_is_reported(self, v4: Path, index: Path) -> None:
        flip(index, 0, 7)
        assert (f"index/{index.name}", 0, None, ProblemKind.INDEX_FILE) in found(checked(v4))

    def test_a_wrong_slot_is_found(self, v4: Path, index: Path) -> None:
        content = index.read_bytes()
        slot = next(n for n in range(100) if any(content[slot_at(n) : slot_at(n) + 4]))
        flip(index, slot_at(slot) + 3)
        (problem,) = checked(v4).problems
        assert (problem.offset, problem.kind) == (slot_at(slot), ProblemKind.INDEX_SLOT)

    @pytest.mark.parametrize(
        ("field", "kind"),
        [
            ("key_hash", ProblemKind.INDEX_ENTRY),
            ("physical_offset", ProblemKind.INDEX_ENTRY),
            ("seconds", ProblemKind.INDEX_ENTRY),
            ("previous", ProblemKind.INDEX_CHAIN),
        ],
    )
    @pytest.mark.parametrize("number", [2, 17, 38])
    def test_a_wrong_entry_is_found(
        self, field: str, kind: ProblemKind, number: int, v4: Path, index: Path
    ) -> None:
        at = entry_at(100, number)
        flip(index, at + INDEX_ENTRY.offsets[field] + 3)
        (problem,) = checked(v4).problems
        assert problem[:2] == (f"index/{index.name}", at)
        assert problem.kind is kind
        assert problem.physical_offset is not None

    def test_no_index_is_a_warning(self, v4: Path) -> None:
        shutil.rmtree(v4 / "index")
        report = checked(v4)
        assert report.ok
        assert [warning[:4] for warning in report.warnings] == [
            ("index", 0, 0, ProblemKind.NO_INDEX)
        ]

    @pytest.mark.parametrize("number", [0, 1, 2, 3])
    def test_a_missing_file_is_reported(self, number: int, tmp_path: Path) -> None:
        root = copy_of("v5-clean", tmp_path)
        sorted((root / "index").iterdir())[number].unlink()
        problems = checked(root).problems
        assert ProblemKind.INDEX_MISSING in {problem.kind for problem in problems}
        (missing,) = (p for p in problems if p.kind is ProblemKind.INDEX_MISSING)
        assert "keys of the messages from" in missing.detail

    def test_a_file_of_another_store_is_reported(self, tmp_path: Path) -> None:
        root = copy_of("v4-clean", tmp_path)
        shutil.copy(GOLDEN / "v4-rolled" / "index" / "20261115070106180", root / "index")
        kinds = {problem.kind for problem in checked(root).problems}
        assert ProblemKind.INDEX_STRAY in kinds

    def test_an_entry_twice_is_a_warning(self, tmp_path: Path) -> None:
        """The Java store indexes the last message again when it recovers."""
        root = copy_of("v4-clean", tmp_path)
        with Store.open(root) as store:
            index = store._engine.index
            assert index is not None
            last = index.files[-1]
            number = last.header.next_entry - 1
            offset = last.offset_of(number)
            record = store.at(offset)
            assert record is not None
            key = index_key_hash(record.topic, record.unique_key or record.keys[0])
            last.append(array("q", (key, offset, record.store_time)), 0, 1)
        report = checked(root)
        assert report.ok
        assert [warning.kind for warning in report.warnings] == [ProblemKind.INDEX_REPEATED]

    def test_tags_may_be_indexed_since_some_message(self, tmp_path: Path) -> None:
        """A store that went from RocketMQ 4.9 to 5.5 has tags in the index from then on."""
        config = small_config(log=8192)
        with Store.open(tmp_path, config) as store:
            put_all(store, [b"x"] * 10, tags="A", keys=["k"])
        with Store.open(tmp_path, config) as store:
            deriver = store._engine.dispatcher._deriver
            deriver.policy = replace(deriver.policy, tags=True)
            put_all(store, [b"x"] * 10, tags="A", keys=["k"])
        report = checked(tmp_path)
        assert report.ok and not report.warnings
        assert report.index_entries >= 20


class TestMarks:
    @pytest.mark.parametrize("field", ["physic_timestamp", "logics_timestamp", "index_timestamp"])
    def test_a_checkpoint_ahead_of_the_log(self, field: str, v4: Path) -> None:
        flip(v4 / "checkpoint", CHECKPOINT.offsets[field] + 1, 3)
        at = CHECKPOINT.offsets[field]
        assert found(checked(v4)) == [("checkpoint", at, None, ProblemKind.CHECKPOINT_AHEAD)]

    def test_a_checkpoint_that_cannot_be_read(self, v4: Path) -> None:
        flip(v4 / "checkpoint", 8, 7)
        assert found(checked(v4)) == [("checkpoint", 8, None, ProblemKind.CHECKPOINT_UNREADABLE)]
        truncate(v4 / "checkpoint", 100)
        assert found(checked(v4)) == [("checkpoint", 0, None, ProblemKind.CHECKPOINT_UNREADABLE)]
        (v4 / "checkpoint").unlink()
        report = checked(v4)
        assert report.ok
        assert [warning.kind for warning in report.warnings] == [ProblemKind.CHECKPOINT_MISSING]

    def test_a_checkpoint_older_than_the_watermark_is_reported(self, ours: Path) -> None:
        content = (ours / "checkpoint").read_bytes()
        bit = next(b for b in range(64) if int.from_bytes(content[:8], "big") >> b & 1)
        flip(ours / "checkpoint", 7 - bit // 8, bit % 8)
        assert found(checked(ours)) == [("checkpoint", 0, None, ProblemKind.CHECKPOINT_BEHIND)]

    @pytest.mark.parametrize("slot", [0, 1])
    def test_a_torn_watermark_is_reported(self, slot: int, ours: Path) -> None:
        flip(ours / "firetrail.watermark", slot * SLOT_SIZE + 30)
        report = checked(ours)
        assert found(report) == [
            ("firetrail.watermark", slot * SLOT_SIZE, None, ProblemKind.WATERMARK_TORN)
        ]


class TestConfirmedEnd:
    def noted(self, root: Path, offset: int) -> None:
        file = ConfirmedFile(SYSTEM, root)
        file.note(1)
        file.note(offset)
        file.close()

    def test_a_log_that_lacks_confirmed_messages_is_a_warning(self, ours: Path) -> None:
        self.noted(ours, 1 << 40)
        report = checked(ours)
        assert report.ok
        ((kind, file, detail),) = [(w.kind, w.file, w.detail) for w in report.warnings]
        assert (kind, file) == (ProblemKind.CONFIRMED_AHEAD, "firetrail.confirmed")
        assert f"confirmed the log up to {1 << 40}, but it ends at" in detail

    def test_a_log_with_all_confirmed_messages_is_good(self, ours: Path) -> None:
        self.noted(ours, 2)
        assert checked(ours).warnings == []

    @pytest.mark.parametrize("slot", [0, 1])
    def test_a_torn_slot_of_a_closed_store_is_a_warning(self, slot: int, ours: Path) -> None:
        self.noted(ours, 2)
        flip(ours / "firetrail.confirmed", slot * SLOT_SIZE + 9)
        report = checked(ours)
        assert report.ok
        assert [(w.kind, w.offset) for w in report.warnings] == [
            (ProblemKind.CONFIRMED_TORN, slot * SLOT_SIZE)
        ]
