"""Bulk appends, whose power goes at every operation: all of a commit or none of it, and once.

Then with one thing wrong each: the survey must catch every one.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.crash.power_loss.bulk_survey import bulk_survey
from tests.crash.seeded_bugs import expect_violation
from tests.crash.world.simulation import DEEP, tiny_config

from firetrail.storage.segment import Segment
from firetrail.store import bulk
from firetrail.store.bulk import BulkAppend
from firetrail.store.bulk_journal import Journal
from firetrail.store.root.folder import AbortFile
from firetrail.system import Files

SEEDS = range(40) if DEEP else range(1)
ATTEMPTS = 4
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", SEEDS)
def test_appends_in_bulk_survive_power_loss_at_any_moment(seed: int) -> None:
    config = tiny_config("sync", property_crc=bool(seed % 2))
    checker = bulk_survey(config, seed, random.Random(seed), share=1.0 if DEEP else 0.3)
    print(f"{checker.images} images")
    assert checker.torn_properties == 0


def _not_synced(patch: pytest.MonkeyPatch, start: tuple[type, str], end: tuple[type, str]) -> None:
    """Files of the log are not synced from the call of one method to that of another."""
    quiet: list[bool] = []

    def switched(place: tuple[type, str], on: bool) -> None:
        original = getattr(*place)

        def called(self: Any, *args: Any) -> Any:
            quiet[:] = [True] if on else []
            return original(self, *args)

        patch.setattr(*place, called)

    def sync(self: Segment) -> None:
        if quiet:
            self.flushed = self.committed
        else:
            real(self)

    real = Segment.sync
    switched(start, True)
    switched(end, False)
    patch.setattr(Segment, "sync", sync)


def records_not_synced(patch: pytest.MonkeyPatch) -> None:
    _not_synced(patch, (BulkAppend, "commit"), (Journal, "announce"))


def head_not_synced(patch: pytest.MonkeyPatch) -> None:
    _not_synced(patch, (Journal, "announce"), (BulkAppend, "close"))


def journal_not_synced(patch: pytest.MonkeyPatch) -> None:
    def replace(self: Files, path: Path, content: bytes) -> None:
        if path.name != "firetrail.sink":
            return real(self, path, content)
        with patch.context() as lazy:
            lazy.setattr(type(self), "sync", lambda self, descriptor: None)
            lazy.setattr(type(self), "sync_folder", lambda self, path: None)
            return real(self, path, content)

    real = Files.replace
    patch.setattr(Files, "replace", replace)


def head_not_hidden(patch: pytest.MonkeyPatch) -> None:
    def write(self: BulkAppend, segment: Segment, *args: Any) -> None:
        real(self, segment, *args)
        assert self._head is not None
        segment, at, head = self._head
        segment.view[at : at + len(head)] = head

    real = BulkAppend._write
    patch.setattr(BulkAppend, "_write", write)


def no_note_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "announce", lambda self, *args: None)


def notes_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BulkAppend, "_is_published", lambda self, note: True)


def notes_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BulkAppend, "_is_published", lambda self, note: False)


def taken_for_closed(patch: pytest.MonkeyPatch) -> None:
    class NoAbortFile(AbortFile):
        def create(self, *, sealed: bool) -> None:
            pass

    patch.setattr(bulk, "AbortFile", NoAbortFile)


MUTANTS: list[tuple[str, Patch, int]] = [
    # name, what is wrong, and the seed of a survey that soon catches it
    ("appended records are not synced before their commit", records_not_synced, 0),
    ("the commit of an append is not synced", head_not_synced, 0),
    ("the journal of appends is not synced", journal_not_synced, 0),
    ("an append is readable before its commit", head_not_hidden, 0),
    ("an append enters the journal only after its commit", no_note_before, 0),
    ("every append in the journal counts as done", notes_believed, 2),
    ("no append in the journal counts as done", notes_forgotten, 0),
    ("a store counts as closed during the commit of an append", taken_for_closed, 0),
]


@pytest.mark.parametrize(
    ("patch", "first"), [mutant[1:] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS]
)
def test_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, patch: Patch, first: int) -> None:
    patch(monkeypatch)
    config = tiny_config("sync", property_crc=True)
    seeds = sorted(range(ATTEMPTS), key=lambda seed: (seed != first, seed))
    expect_violation(partial(bulk_survey, config), seeds)
