"""Power losses while a master hands over to its replica: there is one master, and nothing is lost.

Every moment of the hand-over counts: the step-down of the master, the change of role of the replica
and their saved roles. Some crash a second time, while they settle the hand-over.
"""

import random
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.crash.oracle import Violation
from tests.crash.power_loss.role_survey import role_survey
from tests.crash.world.disk import Disk, SimulatedFiles, Snapshot, random_image, write_image
from tests.crash.world.simulation import DEEP, scratch
from tests.crash.world.threads import World

from firetrail.broker.replica.rewound_files import settle_rewound
from firetrail.broker.replica.saved_role import RoleFile, SavedRole, saved_role
from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.format.names import CONFIG
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

SEEDS = range(10) if DEEP else range(1)
IMAGES = 1_000 if DEEP else 5


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_hand_over_survives_power_loss_at_any_moment(mode: str, seed: int) -> None:
    checker = role_survey(mode, random.Random(f"{mode} {seed}"), IMAGES)
    print(checker.outcomes)
    assert sum(checker.outcomes.values()) >= IMAGES or DEEP
    assert checker.outcomes["new"]


def _nothing(*_: object, **__: object) -> None:
    """Do nothing, as a mutant does."""


@pytest.mark.parametrize(
    ("kind", "method", "said"),
    [
        (RoleFile, "begin_hand_over", "there are 0 masters"),
        (SlaveMark, "set", "its epoch 0 is old"),
        (SlaveMark, "clear", "marked as a slave's"),
    ],
    ids=["no note", "no mark", "mark stays"],
)
def test_mutants_are_caught(kind: type, method: str, said: str) -> None:
    with patch.object(kind, method, _nothing), pytest.raises(Violation, match=said):
        role_survey("sync", random.Random(3), 200, again_share=0.0)


class _Recorded:
    """A disk with the files of a replica, and snapshots of it before each operation."""

    def __init__(self, below: Path) -> None:
        self.root = below / "live"
        (self.root / CONFIG).mkdir(parents=True)
        self.disk = Disk(self.root)
        self.files = SimulatedFiles(self.disk, World(0, 0.0, 0.0))
        self.system = self.files.system()
        self.moments: list[Snapshot] = []
        self._below = below

    def record(self) -> None:
        self.moments = []
        self.files.hooks.append(lambda kind, path: self.moments.append(self.disk.snapshot(path)))

    def after_power_loss(self, moment: Snapshot, source: random.Random) -> Path:
        _, image = random_image(moment, source)
        root = self._below / f"image-{source.random()}"
        write_image(image, root)
        return root


def test_a_known_divergence_survives_power_loss() -> None:
    """Once the replica was unregistered, it must not serve its log after any restart."""
    source = random.Random(1)
    with scratch() as below:
        replica = _Recorded(below)
        mark = SlaveMark(replica.system, replica.root)
        mark.set(known_epoch=1)
        mark.learn_comparison("c/b", "")
        replica.record()
        mark.learn_comparison("c/b", "they differ")
        noted = len(replica.moments)
        mark.learn_role("SYNC_MASTER")
        replica.moments.append(replica.disk.snapshot("end"))
        for number, moment in enumerate(replica.moments):
            for _ in range(5):
                root = replica.after_power_loss(moment, source)
                notes = SlaveMark(SYSTEM, root).notes
                assert notes.is_slave and notes.followed == "c/b"
                assert notes.diverged == "they differ" or number < noted


def test_a_store_is_no_master_only_after_its_rewind_is_complete() -> None:
    source = random.Random(1)
    outcomes = set()
    with scratch() as below:
        replica = _Recorded(below)
        SlaveMark(replica.system, replica.root).learn_comparison("c/b", "they differ")
        roles = RoleFile(replica.system, replica.root, BrokerRole.SLAVE, 1)
        roles.save(SavedRole("ASYNC_MASTER", 0, "", "SLAVE", 1, 7))
        replica.record()
        assert settle_rewound(replica.system, replica.root) == "ASYNC_MASTER"
        replica.moments.append(replica.disk.snapshot("end"))
        for moment in replica.moments:
            for _ in range(5):
                root = replica.after_power_loss(moment, source)
                notes, saved = SlaveMark(SYSTEM, root).notes, saved_role(SYSTEM, root)
                outcomes.add((notes.diverged, saved is None))
                assert saved is not None or (notes.diverged, notes.known_epoch) == ("", 7)
                settle_rewound(SYSTEM, root)  # it can be repeated
                assert saved_role(SYSTEM, root) is None
    assert len(outcomes) == 3
