"""Seeded bugs of the broker: its surveys must catch each, as those of the store do."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from tests.crash.power_loss.broker_survey import Users, broker_survey
from tests.crash.power_loss.timer_users import TimerUsers
from tests.crash.seeded_bugs import expect_violation
from tests.crash.world.broker_process import broker_config

from firetrail.broker.pop.pop_checkpoints import PopCheckpoints
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.saver import Saver
from firetrail.broker.state.topic_table import TopicTable
from firetrail.broker.timer.delivery import TimerDelivery
from firetrail.broker.timer.due_slot import DueSlot
from firetrail.broker.timer.timer_files import TimerFiles
from firetrail.broker.timer.timer_service import TimerService
from firetrail.format.files import config_json
from firetrail.format.files.unit import ConsumeQueueUnit
from firetrail.settings.config_file import ConfigFile
from firetrail.store.topic_removal import TopicRemoval

ATTEMPTS = 12
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
    def settle(self: TopicRemoval) -> int:
        return self._engine.log.max_offset

    patch.setattr(TopicRemoval, "settle", settle)


def lost_topics_stay_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicTable, "recover", lambda self, queues, newest_time, destinations: None)


def deleted_topics_keep_offsets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetTable, "forget", lambda self, *, topic=None, group=None: None)
    # The start sets offsets back that are beyond the end of their queue, which would hide this.
    patch.setattr(OffsetTable, "set_back", lambda self, overshoot: [])


def timer_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    def begin_save(self: TimerFiles, read_ms: int) -> Callable[[], None]:
        save = original(self, read_ms)

        def without_the_log() -> None:
            store, self._store = self._store, Mock()
            try:
                save()
            finally:
                self._store = store

        return without_the_log

    original = TimerFiles.begin_save
    patch.setattr(TimerFiles, "begin_save", begin_save)


def delivered_timers_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerDelivery, "has_copy", lambda self, record, topic, fits=None: False)


def late_timers_dropped(patch: pytest.MonkeyPatch) -> None:
    def add(self: TimerService, unit: ConsumeQueueUnit, current_ms: int) -> None:
        self._done_to, self._done_before_ms = 1 << 62, current_ms
        original(self, unit, current_ms)

    original = TimerService._add
    patch.setattr(TimerService, "_add", add)


def timers_saved_before_they_are_delivered(patch: pytest.MonkeyPatch) -> None:
    delivered = property(lambda self: self.read_ms + 2_000)
    patch.setattr(TimerService, "_delivered_ms", delivered)


def recalled_timers_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DueSlot, "is_recalled", lambda self, record: False)


TIMER_MUTANTS: list[tuple[str, str, Patch, int]] = [
    ("the timer is ahead of the log", "async", timer_ahead_of_the_log, 7),
    ("delivered timers are not looked up", "sync", delivered_timers_not_looked_up, 0),
    ("late timers are dropped", "sync", late_timers_dropped, 0),
    (
        "timers are saved before they are delivered",
        "sync",
        timers_saved_before_they_are_delivered,
        7,
    ),
    ("recalled timers are delivered", "sync", recalled_timers_delivered, 0),
]
"""As below, with clients that mostly send messages with a delivery time."""
MUTANTS: list[tuple[str, str, Patch, int]] = [
    # name, flush mode, what is wrong, and the seed of the first survey (one that catches it)
    ("configuration is rewritten in place", "sync", rewritten_in_place, 0),
    ("offsets are ahead of the log", "async", offsets_ahead_of_the_log, 7),
    ("open pops are forgotten", "sync", open_pops_forgotten, 5),
    ("changes are acknowledged before they are saved", "sync", answered_before_saved, 0),
    ("queues are removed before the deletion is durable", "sync", queues_removed_at_once, 2),
    ("topics that were not saved stay lost", "sync", lost_topics_stay_lost, 0),
    ("offsets in deleted topics are kept", "sync", deleted_topics_keep_offsets, 1),
]


@pytest.mark.parametrize(
    ("users", "mode", "patch", "first"),
    [
        pytest.param(users, *mutant[1:], id=mutant[0])
        for users, mutants in ((Users, MUTANTS), (TimerUsers, TIMER_MUTANTS))
        for mutant in mutants
    ],
)
def test_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, users: type[Users], mode: str, patch: Patch, first: int
) -> None:
    patch(monkeypatch)
    trial = partial(broker_survey, broker_config(mode), share=0.2, users=users)
    expect_violation(trial, range(first, first + ATTEMPTS))
