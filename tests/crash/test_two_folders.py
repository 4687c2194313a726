"""A log in two folders survives power losses, and the survey catches seeded bugs."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.crash.files_check import SECOND_DISK
from tests.crash.seeded_bugs import expect_violation
from tests.crash.world.disk import SimulatedFiles
from tests.crash.world.simulation import DEEP, survey, tiny_config

from firetrail import StoreConfig
from firetrail.format.names import COMMIT_LOG, LOG_PATHS
from firetrail.store import engine
from firetrail.store.log import paths
from firetrail.store.log.paths import LogPaths
from firetrail.system import Files

CONFIG = tiny_config("sync", property_crc=True, commit_log_paths=(COMMIT_LOG, SECOND_DISK))
ATTEMPTS = 4
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(40 if DEEP else 1))
def test_power_loss_is_survived(seed: int) -> None:
    survey(CONFIG, seed, random.Random(seed), share=1.0 if DEEP else 0.05)


def names_in_one_folder_synced(patch: pytest.MonkeyPatch) -> None:
    def sync(self: SimulatedFiles, path: Path) -> None:
        if SECOND_DISK not in str(path):
            original(self, path)

    original = SimulatedFiles.sync_folder
    patch.setattr(SimulatedFiles, "sync_folder", sync)


def folders_not_recorded(patch: pytest.MonkeyPatch) -> None:
    def settle(files: Files, root: Path, config: StoreConfig) -> LogPaths | None:
        if paths.recorded_paths(files, root) is not None:
            return paths.recorded_paths(files, root)
        if (root / COMMIT_LOG).exists():
            return None  # the second start relies on what the first one has recorded
        settled = original(files, root, config)
        files.discard(root / LOG_PATHS)
        return settled

    original = paths.settle_paths
    patch.setattr(engine, "settle_paths", settle)


MUTANTS: list[tuple[str, Patch]] = [
    ("names in the second folder of a log are not synced", names_in_one_folder_synced),
    ("the folders of a log are not recorded", folders_not_recorded),
]


@pytest.mark.parametrize(
    "patch", [mutant[1] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS]
)
def test_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, patch: Patch) -> None:
    patch(monkeypatch)
    expect_violation(partial(survey, CONFIG, share=0.1), range(ATTEMPTS))
