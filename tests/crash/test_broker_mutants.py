"""Seeded bugs of the broker: its surveys must catch each, as those of the store do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.broker_process import broker_config
from tests.crash.broker_survey import broker_survey
from tests.crash.oracle import Violation

from firetrail import FiretrailError
from firetrail.broker.pop.checkpoints import PopCheckpoints
from firetrail.broker.state.config_file import ConfigFile
from firetrail.broker.state.offsets import OffsetTable
from firetrail.broker.state.saver import Saver
from firetrail.broker.state.topics import TopicTable
from firetrail.format import config_json
from firetrail.store.broker_store import BrokerStore

ATTEMPTS = 4
Patch = Callable[[pytest.MonkeyPatch], None]


def rewritten_in_place(patch: pytest.MonkeyPatch) -> None:
    def overwrite(self: ConfigFile, value: dict[str, Any]) -> None:
        files = self._files
        files.make_folder(self.path.parent)
        descriptor = files.open(self.path, writable=True, create=True)
        files.set_size(descriptor, 0)
        files.write(descriptor, [config_json.dumps(value).encode()], 0)
        files.sync(descriptor)
        files.close(descriptor)
        files.sync_folder(self.path.parent)

    patch.setattr(ConfigFile, "save", overwrite)


def offsets_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    def save(self: ConfigFile, value: dict[str, Any]) -> None:
        self._before = None
        original(self, value)

    original = ConfigFile.save
    patch.setattr(ConfigFile, "save", save)


def open_pops_forgotten(patch: pytest.MonkeyPatch) -> None:
    def all_done(self: PopCheckpoints) -> None:
        for queue, last in self._last.items():
            self._offsets.commit("CID_RMQ_SYS_REVIVE_GROUP", self._topics.revive, queue, last)

    patch.setattr(PopCheckpoints, "save_progress", all_done)


def answered_before_saved(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: Saver) -> None:
        """Nothing is waited for."""

    patch.setattr(Saver, "saved", at_once)


def queues_removed_at_once(patch: pytest.MonkeyPatch) -> None:
    def settle(self: BrokerStore) -> int:
        return self.log_range[1]

    patch.setattr(BrokerStore, "settle", settle)


def lost_topics_stay_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicTable, "recover", lambda self, queues, newest_time, destinations: None)


def deleted_topics_keep_offsets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetTable, "forget", lambda self, *, topic=None, group=None: None)
    # The start sets offsets back that are beyond the end of their queue, which would hide this.
    patch.setattr(OffsetTable, "set_back", lambda self, overshoot: [])


MUTANTS: list[tuple[str, str, Patch, int]] = [
    # name, flush mode, what is wrong, and the seed of the first survey (one that catches it)
    ("configuration is rewritten in place", "sync", rewritten_in_place, 0),
    ("offsets are ahead of the log", "async", offsets_ahead_of_the_log, 0),
    ("open pops are forgotten", "sync", open_pops_forgotten, 0),
    ("changes are acknowledged before they are saved", "sync", answered_before_saved, 0),
    ("queues are removed before the deletion is durable", "sync", queues_removed_at_once, 0),
    ("topics that were not saved stay lost", "sync", lost_topics_stay_lost, 0),
    ("offsets in deleted topics are kept", "sync", deleted_topics_keep_offsets, 0),
]


@pytest.mark.parametrize(
    ("mode", "patch", "first"),
    [mutant[1:] for mutant in MUTANTS],
    ids=[mutant[0] for mutant in MUTANTS],
)
def test_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, mode: str, patch: Patch, first: int
) -> None:
    patch(monkeypatch)
    for seed in range(first, first + ATTEMPTS):
        try:
            broker_survey(broker_config(mode), seed, random.Random(seed), share=0.2)
        except (Violation, FiretrailError) as caught:
            print(f"seed {seed}: {caught}")
            return
    raise AssertionError(f"not caught in {ATTEMPTS} surveys")
