"""The check of a store: good ones are good, and each damage is found at its place."""

import errno
import random
import shutil
from pathlib import Path

import pytest
from tests.helpers import Machine, crash_image, put_all, small_config
from tests.store.checks import FIRST, LOG, checked, found
from tests.stores import (
    CLEAN,
    GOLDEN,
    NAMES,
    copy_of,
    field_position,
    flip,
    log_file,
    overwrite,
    records,
    state,
    truncate,
)

from firetrail import Message, Store
from firetrail.format.layout import RECORD_HEAD, UNIT
from firetrail.format.values.delay import DelayLevels
from firetrail.store.inspect.fsck.report import FINDINGS_MAX, DamagedRanges, Findings
from firetrail.store.problems import WARNINGS, ProblemKind

pytestmark = pytest.mark.stepped_threads


class TestGoodStores:
    @pytest.mark.parametrize("name", NAMES)
    def test_golden_stores_are_good(self, name: str, tmp_path: Path) -> None:
        root = copy_of(name, tmp_path)
        before = state(root)
        report = checked(root)
        assert report.ok and not report.warnings and report.torn_tail is None
        expected = records(root)
        unseen = sum(record.sys_flag & 0xC in (0x4, 0xC) for record in expected)
        assert (report.messages, report.units) == (len(expected), len(expected) - unseen)
        assert report.index_entries > 0
        assert report.state == ("crashed" if "crashed" in name else "closed")
        assert state(root) == before

    def test_a_closed_store_is_good(self, ours: Path) -> None:
        report = checked(ours)
        assert report.ok and not report.warnings
        assert (report.messages, report.units, report.index_entries) == (40, 40, 120)
        assert (report.log_files, report.index_files) == (3, 2)

    def test_a_live_store_is_good(self, tmp_path: Path) -> None:
        with Store.open(tmp_path / "s", small_config(log=2048)) as store:
            put_all(store, [b"x"] * 50, keys=["k"])
            before = state(tmp_path / "s")
            report = checked(tmp_path / "s")
            assert report.ok and not report.warnings
            assert (report.state, report.messages) == ("open", 50)
            assert state(tmp_path / "s") == before
            store.put(Message("T", b"more"))

    def test_a_killed_store_is_good(self, tmp_path: Path) -> None:
        with Store.open(tmp_path / "s", small_config()) as store:
            put_all(store, [b"x"] * 20, keys=["k"])
            end = store.log_range[1]
            root = crash_image(tmp_path / "s", tmp_path / "crashed")
        shutil.rmtree(root / "consumequeue")  # never on disk
        overwrite(root / LOG, end, b"\0\0\1\0torn")
        report = checked(root)
        assert report.ok and report.state == "crashed"
        assert report.torn_tail is not None
        assert report.torn_tail[:3] == (LOG, end, end)

    def test_good_records_that_recovery_drops_are_reported(self, tmp_path: Path) -> None:
        with Store.open(tmp_path / "s", small_config()) as store:
            offsets = put_all(store, [b"x" * 50] * 20)
            root = crash_image(tmp_path / "s", tmp_path / "crashed")
        flip(root / LOG, offsets[10] + 4)
        report = checked(root)
        assert report.ok
        assert report.messages == 10
        assert [w[:4] for w in report.warnings] == [
            (LOG, offsets[10], offsets[10], ProblemKind.RECORDS_DROPPED)
        ]

    def test_an_empty_store_is_good(self, tmp_path: Path) -> None:
        (tmp_path / "commitlog").mkdir()
        report = checked(tmp_path)
        assert report.ok and report.messages == 0

    def test_a_store_after_retention_is_good(self, tmp_path: Path) -> None:
        with Store.open(tmp_path, small_config(log=1024)) as store:
            put_all(store, [b"x" * 100] * 60, keys=["a", "b"])
        with Store.open(tmp_path, small_config(log=1024)) as store:
            assert store.delete_expired(forced=True)
        report = checked(tmp_path)
        assert report.ok and not report.warnings
        assert report.begin_offset > 0

    def test_other_delay_levels_show_as_wrong_units(self, v4: Path) -> None:
        assert checked(v4).ok
        report = checked(v4, delays=DelayLevels.parse("1s 2s 3s"))
        assert found(report) == [
            (f"consumequeue/SCHEDULE_TOPIC_XXXX/2/{FIRST}", 0, 2126, ProblemKind.UNIT_WRONG)
        ]
        assert "tags code" in report.problems[0].detail

    def test_units_with_extensions_are_good(self, v4: Path) -> None:
        (v4 / "consumequeue_ext").mkdir()
        unit = v4 / "consumequeue" / "T1" / "0" / FIRST
        overwrite(unit, 12, UNIT.struct.pack(0, 0, -(2**63))[12:])
        report = checked(v4)
        assert report.ok and not report.warnings


class TestTheLog:
    """Each field of a record that can be checked; the record is the third one, at 332."""

    HEAD: tuple[tuple[str, int, list[ProblemKind]], ...] = (
        ("total_size", 0, [ProblemKind.RECORD_PROPERTIES_LENGTH]),
        ("magic", 0, [ProblemKind.RECORD_MAGIC]),
        ("body_crc", 0, [ProblemKind.BODY_CRC]),
        ("queue_offset", 0, [ProblemKind.QUEUE_OFFSET]),
        ("physical_offset", 0, [ProblemKind.RECORD_OFFSET]),
    )

    @pytest.mark.parametrize(("field", "bit", "kinds"), HEAD)
    def test_a_flipped_bit_in_the_head_is_found(
        self, field: str, bit: int, kinds: list[ProblemKind], v4: Path
    ) -> None:
        at = RECORD_HEAD.offsets[field] + layout_size(field) - 1
        flip(v4 / LOG, 332 + at, bit)
        report = checked(v4)
        assert found(report) == [(LOG, 332, 332, kind) for kind in kinds]
        assert report.messages == (21 if kinds == [ProblemKind.QUEUE_OFFSET] else 20)

    @pytest.mark.parametrize(
        ("position", "content", "kind"),
        [
            (0, b"\x7f\xff\xff\xff", ProblemKind.RECORD_CUT),
            (0, b"\0\0\0\1", ProblemKind.RECORD_SIZE),
            (84, b"\x7f\xff\xff\xff", ProblemKind.RECORD_BODY_LENGTH),
            (95, b"\x7f", ProblemKind.RECORD_TOPIC_LENGTH),
            (98, b"\x7f\xff", ProblemKind.RECORD_PROPERTIES_LENGTH),
            (0, bytes(166), ProblemKind.LOG_HOLE),
        ],
    )
    def test_wrong_lengths_are_found(
        self, position: int, content: bytes, kind: ProblemKind, v4: Path
    ) -> None:
        overwrite(v4 / LOG, 332 + position, content)
        report = checked(v4)
        assert found(report) == [(LOG, 332, 332, kind)]
        assert report.messages == 20
        assert report.problems[0].detail.endswith("the next good record is at 498")

    @pytest.mark.parametrize(
        ("field", "kinds"),
        [
            ("body", {ProblemKind.BODY_CRC}),
            ("tags", {ProblemKind.UNIT_WRONG}),
            ("keys", {ProblemKind.INDEX_ENTRY}),
            ("unique_key", {ProblemKind.INDEX_ENTRY}),
        ],
    )
    def test_flipped_bits_in_the_content_are_found(
        self, field: str, kinds: set[ProblemKind], v4: Path
    ) -> None:
        at = field_position((v4 / LOG).read_bytes(), 0, 332, field)
        flip(v4 / LOG, at)
        report = checked(v4)
        assert {problem.kind for problem in report.problems} == kinds
        assert {problem.physical_offset for problem in report.problems} == {332}
        if kinds == {ProblemKind.INDEX_ENTRY}:
            intact = "the entry is intact, so it may be the key in the record that is damaged"
            assert all(problem.detail.endswith(intact) for problem in report.problems)

    @pytest.mark.parametrize("field", ["topic", "queue id"])
    def test_a_record_of_another_queue_is_found(self, field: str, v4: Path) -> None:
        """The record is in a queue that has no unit for it, and a unit has no record."""
        at = field_position((v4 / LOG).read_bytes(), 0, 332, "topic")
        flip(v4 / LOG, at if field == "topic" else 332 + 15, 2)
        report = checked(v4)
        kinds = {problem.kind for problem in report.problems}
        assert kinds >= {ProblemKind.UNIT_MISSING, ProblemKind.QUEUE_OFFSET}
        assert 332 in {problem.physical_offset for problem in report.problems}

    @pytest.mark.parametrize("field", ["queue id", "topic"])
    def test_a_record_of_an_impossible_queue_is_found(self, field: str, v4: Path) -> None:
        at = field_position((v4 / LOG).read_bytes(), 0, 332, "topic")
        overwrite(v4 / LOG, at, b"./") if field == "topic" else flip(v4 / LOG, 332 + 12, 7)
        assert (LOG, 332, 332, ProblemKind.RECORD_QUEUE) in found(checked(v4))

    @pytest.mark.parametrize("position", [16, 40, 48, 56, 64, 72, 76])
    def test_the_property_crc_covers_every_field(self, position: int, tmp_path: Path) -> None:
        root = copy_of("v5-propcrc", tmp_path)
        third = records(root)[2].physical_offset
        flip(root / LOG, third + position)
        assert found(checked(root)) == [(LOG, third, third, ProblemKind.PROPERTY_CRC)]

    def test_several_damaged_records_are_found(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        offsets = [record.physical_offset for record in records(root)]
        for number in (3, 40, 41, 200):
            path, at = log_file(root, offsets[number])
            flip(path, at + 4)
        report = checked(root)
        assert [problem.physical_offset for problem in report.problems] == [
            offsets[number] for number in (3, 40, 200)
        ]
        assert report.messages == 259 - 4

    def test_a_damaged_last_record_is_found(self, v4: Path) -> None:
        last = records(v4)[-1].physical_offset
        flip(v4 / LOG, last + 4)
        assert found(checked(v4)) == [(LOG, last, last, ProblemKind.RECORD_MAGIC)]

    def test_the_mark_of_a_files_end(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        last = next(r for r in reversed(records(root)) if r.physical_offset < 8192)
        at = last.physical_offset + last.size
        flip(root / LOG, at + 3)
        report = checked(root)
        assert report.ok and report.advice is None  # it is never read
        assert [warning[:4] for warning in report.warnings] == [
            (LOG, at, at, ProblemKind.BLANK_SIZE)
        ]
        flip(root / LOG, at + 3)
        flip(root / LOG, at + 4)
        assert found(checked(root)) == [(LOG, at, at, ProblemKind.RECORD_MAGIC)]

    def test_times_that_run_backwards_are_a_warning(self, tmp_path: Path) -> None:
        machine = Machine()
        with Store.open(tmp_path, small_config(), system=machine.system) as store:
            put_all(store, [b"x"])
            machine.clock.advance(-3_600_000)
            second = put_all(store, [b"x"])[0]
        report = checked(tmp_path)
        assert report.ok
        assert [w[:4] for w in report.warnings] == [(LOG, second, second, ProblemKind.STORE_TIME)]

    def test_old_bytes_after_the_end_are_a_warning(self, v4: Path) -> None:
        overwrite(v4 / LOG, 3137, (v4 / LOG).read_bytes()[100:266])
        report = checked(v4)
        assert report.ok
        assert [w[:4] for w in report.warnings] == [(LOG, 3137, None, ProblemKind.STALE_TAIL)]

    def test_a_lost_end_is_found(self, ours: Path) -> None:
        last = sorted((ours / "commitlog").iterdir())[-1]
        overwrite(last, 0, bytes(2048))
        base = int(last.name)
        report = checked(ours)
        assert found(report)[0] == (f"commitlog/{last.name}", 0, base, ProblemKind.LOG_END)


def layout_size(field: str) -> int:
    names = list(RECORD_HEAD.offsets)
    ends = [*list(RECORD_HEAD.offsets.values())[1:], RECORD_HEAD.size]
    return ends[names.index(field)] - RECORD_HEAD.offsets[field]


class TestFiles:
    @pytest.mark.parametrize("base", [0, 8192, 40960])
    def test_a_short_log_file(self, base: int, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        truncate(root / "commitlog" / f"{base:020}", 1000)
        assert (f"commitlog/{base:020}", 1000, None, ProblemKind.FILE_SIZE) in found(checked(root))

    def test_a_long_log_file(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        path = root / "commitlog" / f"{8192:020}"
        path.write_bytes(path.read_bytes() + bytes(100))
        assert found(checked(root)) == [
            (f"commitlog/{8192:020}", 8192, None, ProblemKind.FILE_SIZE)
        ]

    def test_a_missing_log_file(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        (root / "commitlog" / f"{8192:020}").unlink()
        report = checked(root)
        assert found(report) == [(f"commitlog/{8192:020}", 0, 8192, ProblemKind.FILE_MISSING)]
        assert report.messages == len(records(root))

    @pytest.mark.parametrize("name", ["v4-rolled", "ours"])
    def test_a_log_without_files(self, name: str, tmp_path: Path, ours: Path) -> None:
        """The volume of the log is not mounted: the queues are right, and nothing else is."""
        root = ours if name == "ours" else copy_of(name, tmp_path)
        end = checked(root).end_offset
        shutil.rmtree(root / "commitlog")
        (root / "commitlog").mkdir()
        report = checked(root)
        assert found(report) == [("commitlog", 0, 0, ProblemKind.LOG_END)]
        assert report.problems[0].detail == (
            f"the log has no file, although it had messages up to {end}"
        )
        assert report.advice is not None and "put the files of the log back" in report.advice
        assert "rebuild-derived" not in report.advice

    def test_a_log_without_files_that_only_the_checkpoint_knows(self, v4: Path) -> None:
        for name in ("commitlog", "consumequeue", "index"):
            shutil.rmtree(v4 / name)
        (v4 / "commitlog").mkdir()
        (problem,) = checked(v4).problems
        assert problem.kind is ProblemKind.LOG_END
        assert "although the checkpoint has a message stored at" in problem.detail

    def test_a_new_store_has_no_log_yet(self, tmp_path: Path) -> None:
        with Store.open(tmp_path / "new", small_config()):
            pass
        assert not list((tmp_path / "new" / "commitlog").iterdir())
        assert checked(tmp_path / "new").ok

    def test_an_overlap(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        shutil.copy(root / LOG, root / "commitlog" / f"{100:020}")
        kinds = {problem.kind for problem in checked(root).problems}
        assert ProblemKind.FILE_OVERLAP in kinds

    def test_an_empty_last_file_is_a_warning(self, v4: Path) -> None:
        (v4 / "commitlog" / f"{4096:020}").touch()
        report = checked(v4)
        assert report.ok
        assert [warning.kind for warning in report.warnings] == [ProblemKind.EMPTY_FILE]

    def test_a_short_queue_file_is_reported(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        file = f"consumequeue/T1/0/{FIRST}"
        truncate(root / file, 1000)
        assert [p[:2] + p[3:4] for p in checked(root).problems] == [
            (file, 1000, ProblemKind.FILE_SIZE),
            (file, 1000, ProblemKind.UNIT_MISSING),
        ]

    def test_a_missing_queue_file_is_reported(self, tmp_path: Path) -> None:
        root = copy_of("v4-rolled", tmp_path)
        (root / "consumequeue" / "T1" / "0" / f"{2000:020}").unlink()
        (problem,) = checked(root).problems
        assert problem.kind is ProblemKind.UNIT_MISSING
        assert "messages 100 to 124 of the queue" in problem.detail

    def test_files_that_cannot_be_read(self) -> None:
        machine = Machine()
        machine.files.fail("open", errno.EACCES, f"commitlog/{8192:020}")
        machine.files.fail("open", errno.EIO, f"T1/1/{2000:020}")
        machine.files.fail("open", errno.EIO, "index/20261115070106074")
        machine.files.fail("read", errno.EIO, "checkpoint", skip=2)
        report = checked(GOLDEN / "v4-rolled", system=machine.system)
        unreadable = [p.file for p in report.problems if p.kind is ProblemKind.FILE_UNREADABLE]
        assert sorted(unreadable) == [
            "checkpoint",
            f"commitlog/{8192:020}",
            f"consumequeue/T1/1/{2000:020}",
            "index/20261115070106074",
        ]
        assert machine.files.open_files == []

    def test_no_descriptor_is_left(self) -> None:
        machine = Machine()
        assert checked(GOLDEN / "v5-clean", system=machine.system).ok
        assert machine.files.open_files == []


@pytest.mark.parametrize("name", CLEAN)
def test_any_flipped_bit_of_any_file_gives_a_report(name: str, tmp_path: Path) -> None:
    """Any flipped bit gives a report, never an exception; flipped back, the store is good."""
    root = copy_of(name, tmp_path)
    rng = random.Random(name)
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    for path in rng.choices(paths, k=40):
        offset, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
        flip(path, offset, bit)
        report = checked(root)
        for problem in report.problems:
            assert problem.offset >= 0 and not problem.file.startswith("/")
        flip(path, offset, bit)
    assert checked(root).ok


@pytest.mark.parametrize("size", [0, 7])
@pytest.mark.parametrize("name", ["v4-rolled", "v5-clean"])
def test_any_file_cut_short(name: str, size: int, tmp_path: Path) -> None:
    root = copy_of(name, tmp_path)
    for path in [p for p in sorted(root.rglob("*")) if p.is_file() and p.stat().st_size > 7]:
        content = path.read_bytes()
        truncate(path, size)
        report = checked(root)
        first = path.relative_to(root).parts[0]
        if first in ("commitlog", "consumequeue", "index", "checkpoint"):
            last_empty = ProblemKind.EMPTY_FILE in {warning.kind for warning in report.warnings}
            assert not report.ok or last_empty, path
        path.write_bytes(content)
    assert checked(root).ok


def test_findings_are_bounded() -> None:
    findings = Findings()
    for number in range(FINDINGS_MAX + 5):
        findings.add("file", number, None, ProblemKind.UNIT_WRONG, "wrong")
    assert (len(findings.problems), findings.omitted) == (FINDINGS_MAX, 5)


def test_damaged_ranges_contain_their_offsets() -> None:
    ranges = DamagedRanges()
    ranges.add(100, 200)
    ranges.add(50, 60)
    assert [offset in ranges for offset in (49, 50, 59, 60, 99, 100, 199, 200)] == [
        *(False, True, True, False, False, True, True, False)
    ]


def test_every_warning_is_a_kind() -> None:
    assert set(ProblemKind) >= WARNINGS
