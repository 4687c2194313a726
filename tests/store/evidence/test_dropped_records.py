"""Good records after the position where recovery ends the log are copied and reported."""

import logging
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from tests.helpers import FaultyFiles, crash_image
from tests.store.checks import checked
from tests.stores import log_file, overwrite

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import DiskFullError, StoreDamagedError
from firetrail.format.record import Record
from firetrail.store.problems import ProblemKind
from firetrail.store.repair.backup import back_up
from firetrail.store.root.watermark import Watermark, WatermarkFile
from firetrail.system import System

CONFIG = StoreConfig().for_files(
    commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
)
COUNT = 90
HIT = 20
"""The message whose page was lost."""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A store that was killed, with a watermark in the middle of what was acknowledged."""
    folder = tmp_path_factory.mktemp("dropped")
    with Store.open(folder / "store", CONFIG) as store:
        for number in range(COUNT):
            store.put(Message("T", b"%04d" % number, queue_id=number % 2, keys=["k"]))
        store.put(Message("T", b"half", sys_flag=0x4))
        assert store.wait_dispatched()
        root = crash_image(folder / "store", folder / "crashed")
        stored = [message for queue in (0, 1) for message in store.read("T", queue)]
    stored.sort(key=lambda message: message.physical_offset)
    system = System()
    (root / "firetrail.watermark").unlink(missing_ok=True)
    with closing(WatermarkFile(system, root)) as file:
        durable = stored[HIT // 2].physical_offset
        file.write(Watermark(False, durable, 0, -1, 0))
    return root, stored


@pytest.fixture
def root(crashed: tuple[Path, list[Record]], tmp_path: Path) -> Path:
    return shutil.copytree(crashed[0], tmp_path / "store")


@pytest.fixture
def stored(crashed: tuple[Path, list[Record]]) -> list[Record]:
    return crashed[1]


def zero(root: Path, message: Record) -> None:
    at = message.physical_offset
    overwrite(root / f"commitlog/{at - at % 4096:020}", at % 4096, bytes(message.size))


def bodies(root: Path) -> list[bytes]:
    with Store.open(root, CONFIG) as store:
        found = [message for queue in (0, 1) for message in store.read("T", queue)]
    return sorted(message.body for message in found)


def expected(first: int, end: int = COUNT) -> list[bytes]:
    return [b"%04d" % number for number in range(first, end)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("queues", [True, False], ids=["with queues", "without queues"])
def test_they_are_named_and_kept(
    queues: bool,
    root: Path,
    stored: list[Record],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hit = stored[HIT]
    zero(root, hit)
    if not queues:
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    report = checked(root)
    assert report.ok and report.torn_tail is not None
    (told,) = [
        warning for warning in report.warnings if warning.kind is ProblemKind.RECORDS_DROPPED
    ]
    assert told.physical_offset == hit.physical_offset
    assert f"good records from {stored[HIT + 1].physical_offset} on" in told.detail
    assert bodies(root) == expected(0, HIT)
    (line,) = warnings(caplog)
    (folder,) = root.glob("dropped-*")
    file = root / "commitlog" / f"{hit.physical_offset // 4096 * 4096:020}"
    start = f"{file} at offset {hit.physical_offset % 4096} (record {hit.physical_offset}): "
    assert line.startswith(start) and str(folder) in line
    half = (COUNT - HIT) // 2
    counts = rf"{COUNT - HIT - 1} good messages \(T/0: {half - 1}, offsets 11 to 44, stored \S+ \S+"
    assert re.search(counts + rf" to .*; T/1: {half}, offsets 10 to 44, .*1 record of trans", line)
    assert main(["fsck", str(root)]) == 0
    capsys.readouterr()
    assert main(["dump", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [text.split()[-1] for text in lines[1:-1]] == [b.decode() for b in expected(HIT + 1)]
    assert main(["salvage", str(folder), "--into", str(tmp_path / "saved")]) == 0
    assert bodies(tmp_path / "saved") == expected(HIT + 1)


def test_a_salvage_before_the_start_keeps_them(
    root: Path, stored: list[Record], tmp_path: Path
) -> None:
    zero(root, stored[HIT])
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    assert main(["salvage", str(root), "--into", str(tmp_path / "saved")]) == 0
    assert bodies(tmp_path / "saved") == expected(0, HIT) + expected(HIT + 1)


def test_a_torn_record_alone_is_not_copied(
    root: Path, stored: list[Record], caplog: pytest.LogCaptureFixture
) -> None:
    last = stored[-1].physical_offset
    file = root / "commitlog" / f"{last // 4096 * 4096:020}"
    overwrite(file, last % 4096 + 90, bytes(4096 - last % 4096 - 90))
    assert bodies(root) == expected(0, COUNT - 1)
    assert not warnings(caplog) and not list(root.glob("dropped-*"))


def test_without_space_for_them_the_log_is_not_changed(root: Path, stored: list[Record]) -> None:
    zero(root, stored[HIT])
    files = FaultyFiles()
    files.fail("copy_range", 28)
    with pytest.raises(DiskFullError, match="No space left"):
        Store.open(root, CONFIG, system=System(files))
    assert not list(root.glob("dropped-*"))
    last = stored[-1]
    path, at = log_file(root, last.physical_offset)
    assert path.read_bytes()[at + 88 : at + 92] == last.body
    (root / "dropped-20260101T000000000Z.building" / "commitlog").mkdir(parents=True)
    assert bodies(root) == expected(0, HIT)
    assert len(list(root.glob("dropped-*"))) == 1  # what a killed start has left is removed


def test_a_start_that_fails_copies_them_once(root: Path, stored: list[Record]) -> None:
    """Repeated starts do not fill the disk."""
    zero(root, stored[HIT])
    path, at = log_file(root, stored[HIT - 4].physical_offset)
    overwrite(path, at + 15, b"\1")  # the queue id: the next message of queue 0 does not fit
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match="queue T/0 has 8 units"):
            Store.open(root, CONFIG)
        assert len(list(root.glob("dropped-*"))) <= 1


def test_a_backup_leaves_them_out(root: Path, stored: list[Record], tmp_path: Path) -> None:
    zero(root, stored[HIT])
    assert bodies(root) == expected(0, HIT)
    back_up(System(), root, tmp_path / "copy", CONFIG)
    assert not list((tmp_path / "copy").glob("dropped-*"))
