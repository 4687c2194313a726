"""With ``delete_archived_only``, a file is deleted when every lake has it."""

from pathlib import Path

import pytest
from tests.helpers import Machine
from tests.store.conftest import OpenStore
from tests.store.retention.test_retention import HOUR_MS, age, filled, round_of, segments

from firetrail import Store
from firetrail.store.retention.archive_marks import ArchiveMark, write_mark

pytestmark = pytest.mark.stepped_threads


@pytest.fixture
def waiting(open_store: OpenStore) -> Store:
    store = filled(open_store, delete_archived_only=True)
    age(store, *[80 * HOUR_MS] * 8)
    return store


def mark(machine: Machine, root: Path, lake: str, offset: int) -> None:
    write_mark(machine.system, root, lake, ArchiveMark(f"somewhere/{lake}", offset))


def test_nothing_is_deleted_before_an_archive(waiting: Store, machine: Machine) -> None:
    assert waiting.delete_expired() == 0
    machine.files.used = 0.95
    assert round_of(waiting) == 0, "not even from a full disk"
    assert waiting.refusal


def test_only_archived_files_are_deleted(waiting: Store, machine: Machine, root: Path) -> None:
    mark(machine, root, "a", 2 * 4096 - 1)
    assert waiting.delete_expired() == 1
    mark(machine, root, "a", 3 * 4096)
    assert waiting.delete_expired() == 2
    assert segments(root)[0] == 3


def test_the_slowest_lake_decides(waiting: Store, machine: Machine, root: Path) -> None:
    mark(machine, root, "a", 5 * 4096)
    mark(machine, root, "b", 4096)
    assert waiting.delete_expired() == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"lake": "x"}', b"\xff"])
def test_an_unreadable_mark_keeps_all_files(waiting: Store, root: Path, content: bytes) -> None:
    (root / "firetrail.archived.a").write_bytes(content)
    assert waiting.delete_expired() == 0
