"""A store that was last a slave's is opened as a master: the work of a promotion is done."""

import logging
from pathlib import Path

import pytest
from tests.broker import halves
from tests.broker.brokers import SMALL
from tests.broker.pairs import (
    REFUSED,
    SLAVE,
    Group,
    caught_up,
    emergency,
    pair,
    promote,
    refusal,
    send,
)
from tests.client.clusters import until

from firetrail.broker.roles.term_changes import Terms
from firetrail.broker.state.slave_mark import SlaveMark, SlaveNotes
from firetrail.broker.term import TermPlan
from firetrail.format.names import TOPICS_JSON
from firetrail.replication.log.epochs import Epoch
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

SYNC_MASTER = SMALL.replace(role=BrokerRole.SYNC_MASTER)


async def test_an_edit_of_the_settings_begins_an_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.broker.stop()
        await new.broker.stop()
        end = new.broker.store.log_range[1]
        new = await group.start("new")
        assert new.broker.epochs.epochs == (Epoch(1, 0), Epoch(2, end))
        assert "this broker is now the master (ASYNC_MASTER), epoch 2" in caplog.text
        assert await send(new, b"second") == 1
        old = await group.start("old")
        assert "a master with epoch 2 has registered" in refusal(await old.send("T1"), REFUSED)
        await new.broker.stop()
        new = await group.start("new")  # it was a master already
        assert new.broker.epochs.number == 2


async def test_of_two_masters_with_one_epoch_the_later_one_refuses_messages(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        third = await group.start("third", SLAVE, broker_id=2)
        await caught_up(third, old)
        await third.broker.stop()
        await emergency(group, old, new)
        assert await send(new, b"second") == 1
        third = await group.start("third")  # it cannot know of the promotion
        assert third.broker.epochs.number == new.broker.epochs.number == 2
        assert "is also a master with epoch 2" in refusal(await third.send("T1"), REFUSED)
        assert group.master == new.broker.address
        assert await send(new, b"third") == 2
        assert (await promote(third, force="true")).epoch == 3  # the operator decides
        assert await send(third, b"other") == 1


async def test_an_edit_of_the_settings_recovers_tables_that_lag(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.broker.stop()
        await new.broker.stop()
        (tmp_path / "new" / "config" / TOPICS_JSON).write_text('{"topicConfigTable":{}}')
        new = await group.start("new")
        assert halves.stored(new, "T1") == [b"first"]
        assert "T1" in new.broker.topics.content().topic_config_table


async def test_a_crash_after_the_new_role_is_saved(tmp_path: Path) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.broker.stop()
        await new.broker.stop()
        roles = new.broker.roles
        roles.save(roles.changed(BrokerRole.ASYNC_MASTER, 0, "", 5))
        new = await group.start("new", SLAVE)
        assert new.broker.role is BrokerRole.ASYNC_MASTER
        assert new.broker.epochs.number == 6  # the number 5 was given to somebody


async def test_an_epoch_that_was_only_heard_of_is_not_begun_again(tmp_path: Path) -> None:
    """A former master steps down for epoch 2, and is made the master before it has copied it."""
    async with pair(tmp_path) as (group, old, new):
        await new.broker.stop()
        roles = old.broker.roles
        roles.save(roles.changed(BrokerRole.SLAVE, 1, "", 2))
        await old.broker.become(BrokerRole.SLAVE, 1)
        await old.broker.stop()
        old = await group.start("old", SYNC_MASTER)  # other settings: the saved role is removed
        assert old.broker.role is BrokerRole.SYNC_MASTER
        assert old.broker.epochs.number == 3


async def test_a_change_that_fails_leaves_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Group(tmp_path) as group:
        old = await group.start("old")
        begin = Terms._begin

        async def fail(self: Terms, plan: TermPlan) -> None:
            monkeypatch.setattr(Terms, "_begin", begin)
            plan.env.slave_mark.set(known_epoch=1)
            raise OSError("does not work")

        monkeypatch.setattr(Terms, "_begin", fail)
        with pytest.raises(OSError, match="does not work"):
            await old.broker.become(BrokerRole.SLAVE, 1)
        assert not SlaveMark(SYSTEM, tmp_path / "old").notes.is_slave
        assert not old.broker.epochs.epochs


async def test_an_emergency_promotion_takes_the_role_of_the_master(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        old = await group.start("old", SYNC_MASTER)
        new = await group.start("new", SLAVE)
        await old.send("T1", b"first")
        await caught_up(new, old)
        await until(lambda: new.broker.slave_mark.notes.master_role)
        await old.broker.stop()
        await new.broker.stop()
        new = await group.start("new", SLAVE)  # it has never seen this master alive
        assert (await promote(new, force="true")).role == "SYNC_MASTER"


def test_the_mark_is_kept_and_written_only_if_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    mark = SlaveMark(SYSTEM, tmp_path)
    assert mark.notes == SlaveNotes()
    mark.clear("c/b")
    assert not (tmp_path / "config").exists()
    mark.set(known_epoch=3)
    mark.set(known_epoch=2)
    mark.learn_role("SYNC_MASTER")
    mark.learn_role("")
    expected = SlaveNotes(is_slave=True, master_role="SYNC_MASTER", known_epoch=3, followed="")
    assert SlaveMark(SYSTEM, tmp_path).notes == expected
    written = (tmp_path / "config" / "firetrailSlave.json").stat().st_mtime_ns
    mark.set(known_epoch=3)
    assert (tmp_path / "config" / "firetrailSlave.json").stat().st_mtime_ns == written
    (tmp_path / "config" / "firetrailSlave.json").write_bytes(b"{")
    assert SlaveMark(SYSTEM, tmp_path).notes == expected  # the backup is not older
