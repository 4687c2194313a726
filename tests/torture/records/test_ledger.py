"""The ledger of the torments detects every kind of violation, and raises or counts it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.oracle import Violation
from tests.torture.records.ledger import Ledger

from firetrail import Message, Store, StoreConfig

CONFIG = StoreConfig().for_files(commit_log_file_size=65536)
Change = Callable[[Path, Ledger, int], None]


def history(folder: Path, ledger: Ledger) -> int:
    """Three messages that were acknowledged, and the number of one that was given up."""
    with Store.open(folder, CONFIG) as store:
        for _ in range(3):
            serial, body = ledger.new("T-single")
            result = store.put(Message("T-single", body))
            ledger.acknowledge(serial, 0, result.queue_offset)
            ledger.end([serial])
    serial, _ = ledger.new("T-single")
    ledger.end([serial])
    ledger.check_log(folder)
    return serial


def put(folder: Path, body: bytes) -> None:
    with Store.open(folder, CONFIG) as store:
        store.put(Message("T-single", body))


def lost(folder: Path, ledger: Ledger, given_up: int) -> None:
    path = next((folder / "commitlog").iterdir())
    path.write_bytes(bytes(path.stat().st_size))


def twice(folder: Path, ledger: Ledger, given_up: int) -> None:
    put(folder, ledger.body(0))


def altered(folder: Path, ledger: Ledger, given_up: int) -> None:
    put(folder, b"1:this is not what was sent")


def resurrected(folder: Path, ledger: Ledger, given_up: int) -> None:
    put(folder, ledger.body(given_up))


def at_another_place(folder: Path, ledger: Ledger, given_up: int) -> None:
    ledger.acknowledge(1, 0, 7)


CHANGES: dict[str, Change] = {
    "lost": lost,
    "twice": twice,
    "altered": altered,
    "resurrected": resurrected,
    "at another place": at_another_place,
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("lenient", [False, True], ids=["raised", "counted"])
def test_what_is_wrong_shows(tmp_path: Path, kind: str, lenient: bool) -> None:
    ledger = Ledger(seed=1, lenient=lenient)
    given_up = history(tmp_path, ledger)
    CHANGES[kind](tmp_path, ledger, given_up)
    if lenient:
        ledger.check_log(tmp_path)
        ledger.check_log(tmp_path)  # a violation is not counted again
        assert len(ledger.wrong[kind]) == (3 if kind == "lost" else 1)
    else:
        with pytest.raises(Violation):
            ledger.check_log(tmp_path)


def test_what_is_still_waited_for_may_come(tmp_path: Path) -> None:
    ledger = Ledger(seed=1)
    history(tmp_path, ledger)
    serial, body = ledger.new("T-single")
    ledger.check_log(tmp_path)
    put(tmp_path, body)
    ledger.check_log(tmp_path)
    assert ledger.sent[serial].acknowledged is False
