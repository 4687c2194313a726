"""Every kind of damage, in every file, is reported with the true file, offset and message."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.stores import flip

from firetrail import Message, Store, StoreConfig
from firetrail.errors import StoreDamagedError
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.broker_store import BrokerStore
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.view import StoreView
from firetrail.store.integrity import damaged_messages
from firetrail.store.log.walk import RecordBatch
from firetrail.system import SYSTEM

DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
CONFIG = StoreConfig().for_files(
    commit_log_file_size=8192, consume_queue_file_size=400, index_slots=20, index_entries=64
)
COUNT = 60


class Place(NamedTuple):
    """The location of a message."""

    number: int
    physical_offset: int
    size: int

    @property
    def file(self) -> str:
        return f"commitlog/{self.physical_offset - self.at:020}"

    @property
    def at(self) -> int:
        return self.physical_offset % CONFIG.commit_log_file_size


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Place]]:
    root = tmp_path_factory.mktemp("places") / "store"
    with Store.open(root, CONFIG) as store:
        for number in range(COUNT):
            store.put(Message("T", b"%04d" % number + b"." * 200, tags="a", keys=["k"]))
    places: list[Place] = []
    with StoreView.open(root) as view:
        for part in view.walk():
            assert isinstance(part, RecordBatch)
            for row in map(part.columns.row, range(part.rows)):
                places.append(Place(len(places), row["physical_offset"], row["size"]))
    assert len(places) == COUNT and places[-1].physical_offset > 2 * CONFIG.commit_log_file_size
    return root, places


@pytest.fixture
def store_of(made: tuple[Path, list[Place]], tmp_path: Path) -> tuple[Path, list[Place]]:
    root, places = made
    target = tmp_path / "store"
    target.mkdir()
    for path in root.rglob("*"):
        copy = target / path.relative_to(root)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return target, places


def victim(places: list[Place], file: int, which: str) -> Place:
    """The first, a middle or the last but one message of a file of the log."""
    size = CONFIG.commit_log_file_size
    within = [place for place in places if place.physical_offset // size == file]
    return within[{"first": 0, "middle": len(within) // 2, "late": -2}[which]]


def zero(root: Path, place: Place, at: int, count: int) -> None:
    with (root / place.file).open("r+b") as file:
        file.seek(place.at + at)
        file.write(bytes(count))


KINDS: dict[str, Callable[[Path, Place], None]] = {
    "zeroed head": lambda root, place: zero(root, place, 0, 64),
    "zeroed record": lambda root, place: zero(root, place, 0, place.size),
    "zeroed body": lambda root, place: zero(root, place, 100, 50),
    "body": lambda root, place: flip(root / place.file, place.at + 120),
    "magic": lambda root, place: flip(root / place.file, place.at + 4),
    "size": lambda root, place: flip(root / place.file, place.at + 1),
    "body length": lambda root, place: flip(root / place.file, place.at + 84),
}


@pytest.mark.parametrize(("file", "which"), [(0, "middle"), (1, "first"), (2, "late")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_is_named_by_every_reader(
    kind: str, file: int, which: str, store_of: tuple[Path, list[Place]]
) -> None:
    root, places = store_of
    place = victim(places, file, which)
    KINDS[kind](root, place)
    with StoreView.open(root) as view:
        first = check_store(view, DELAYS).problems[0]
    assert (first.file, first.offset) == (place.file, place.at)
    assert first.physical_offset == place.physical_offset
    with Store.open(root, CONFIG) as store:
        for tags in (None, "a"):
            with pytest.raises(StoreDamagedError) as caught:
                list(store.read("T", 0, tags=tags))
            error = caught.value
            assert (error.file, error.offset) == (str(root / place.file), place.at)
            assert error.physical_offset == place.physical_offset
            assert f"message {place.number} of T/0: " in error.detail
        others = [m.body for m in store.read("T", 0, place.number + 1)]
        assert len(others) == COUNT - place.number - 1


@pytest.mark.parametrize("number", [0, 7, 25, 58])
@pytest.mark.parametrize("at", [0, 8])
def test_a_damaged_unit_is_named_if_the_log_does_not_help(
    at: int, number: int, store_of: tuple[Path, list[Place]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log helps, if it may; if not, the unit is named."""
    root, _ = store_of
    file = root / "consumequeue/T/0" / f"{number // 20 * 400:020}"
    flip(file, number % 20 * 20 + at)
    monkeypatch.setattr("firetrail.store.reads.reader.search", lambda *place: None)
    with Store.open(root, CONFIG) as store:
        with pytest.raises(StoreDamagedError) as caught:
            list(store.read("T", 0))
        error = caught.value
        assert (error.file, error.offset) == (str(file), number % 20 * 20)
        assert error.physical_offset is None
        assert f"message {number} of T/0: its unit points to" in error.detail
        assert "rebuild-derived" in error.remedy


def test_a_zeroed_page_is_reported_once_by_a_server(
    store_of: tuple[Path, list[Place]], caplog: pytest.LogCaptureFixture
) -> None:
    """One line covers all its messages, for any consumer; the other messages are delivered."""
    root, places = store_of
    size = CONFIG.commit_log_file_size
    with (root / "commitlog" / f"{size:020}").open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))
    in_file = [p for p in places if p.physical_offset // size == 1]
    hit = [p.number for p in in_file if p.at + p.size > 4096]
    assert places[hit[0]].at < 4096  # its head is good, but its properties are not
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        for tags in (None, frozenset([97]), None):  # the hash of "a"
            found: list[int] = []
            offset = 0
            while offset < COUNT:
                result = store.reads.get_hashed("T", 0, offset, 32, tags)
                found += [int(b[20:28].hex(), 16) for b in result.buffers]
                assert result.next_offset > offset
                offset = result.next_offset
            assert found == [n for n in range(COUNT) if n not in hit]
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    first = places[hit[0]]
    assert line == (
        f"T queue 0: messages {hit[0]} to {hit[-1]} are damaged and left out: "
        f"{root / first.file} at offset {first.at} (record {first.physical_offset}): message "
        f"{hit[0]} of T/0: properties length: 0 does not end at the total size of 310 bytes; list "
        "all damage with 'firetrail fsck STORE'; other messages can be read"
    )


def test_reports_are_limited(
    store_of: tuple[Path, list[Place]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory of reported ranges is bounded: beyond it, some are reported again."""
    root, places = store_of
    for number in (3, 5, 7):
        KINDS["magic"](root, places[number])
    monkeypatch.setattr(damaged_messages, "REPORTED_MAX", 2)
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        reports = store.reads._reports
        for _ in range(3):
            result = store.reads.get_hashed("T", 0, 3, 1)
            assert result.next_offset == 5
        assert len(caplog.records) == 1
        for offset in (5, 7):
            store.reads.get_hashed("T", 0, offset, 1)
            assert sum(map(len, reports._reported.values())) <= 2
    assert len(caplog.records) == 3


def test_a_stored_message_that_is_missing(store_of: tuple[Path, list[Place]]) -> None:
    """A message that something waits for is damaged or expired, never just missing."""
    root, places = store_of
    KINDS["zeroed head"](root, places[40])
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        with pytest.raises(StoreDamagedError, match="zeros where a record should begin") as caught:
            store.reads.stored(places[40].physical_offset)
        assert caught.value.physical_offset == places[40].physical_offset
        good = store.reads.stored(places[41].physical_offset)
        assert good is not None and good.queue_offset == 41
        while store.embedded.delete_expired(forced=True):
            pass
        assert store.reads.stored(places[0].physical_offset) is None
