"""A hand-over whose replica or master dies is finished or undone when they run again."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.broker.brokers import Talk
from tests.broker.pairs import SLAVE, caught_up, pair, promote, refusal, send, status
from tests.broker.roles.test_failed_promotion import copies_fail
from tests.client.clusters import until

from firetrail.broker.replica.hand_over import hand_over, unfinished_hand_over
from firetrail.broker.replica.hand_over.hand_over import HandOver
from firetrail.broker.replica.saved_role import ROLE_JSON
from firetrail.broker.roles.promotion import Promotion
from firetrail.remoting.wire.codes import RequestCode
from firetrail.store.settings.store_config import BrokerRole

MASTER = BrokerRole.ASYNC_MASTER


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished_hand_over, "PAUSE_S", 0.02)
    monkeypatch.setattr(hand_over, "RESTORE_PAUSE_S", 0.02)


async def die_in(step: str, replica: Talk, role: str | None = None) -> None:
    """Promote a replica, and end it in a step of the hand-over without any clean-up."""
    is_reached = asyncio.Event()

    async def wait(*_: object) -> None:
        is_reached.set()
        await asyncio.Event().wait()

    async def nothing(*_: object) -> None:
        """The process is gone."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HandOver, step, wait)
        patch.setattr(Promotion, "_undo", nothing)
        answer = await replica.ask(RequestCode.PROMOTE_REPLICA, {"role": role} if role else {})
        assert answer.code == 0, answer.remark
        await is_reached.wait()
        await replica.broker.stop()


async def remark_of(talk: Talk) -> str:
    report = (await status(talk)).hand_over
    return report.remark if report is not None else ""


async def test_a_replica_that_dies_after_the_step_down_finishes_the_hand_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.commit(1)
        successor = new.broker.address
        await die_in("copy_tables", new, "SYNC_MASTER")
        assert f"this broker is now a replica of {successor}" in caplog.text
        assert old.broker.role is BrokerRole.SLAVE
        assert f"this broker has stepped down for {successor}, which" in await remark_of(old)
        new = await group.start("new", SLAVE)
        await until(lambda: new.broker.role is BrokerRole.SYNC_MASTER)
        await until(lambda: group.master == new.broker.address)
        assert new.broker.epochs.number == 2
        assert await new.committed() == 1
        await new.send("T1", b"second")
        await caught_up(old, new)
        await until(lambda: old.broker.roles.saved.hand_over is None)  # type: ignore[union-attr]
        assert await remark_of(old) == await remark_of(new) == ""
        assert "this broker is now the master (SYNC_MASTER), epoch 2" in caplog.text


async def test_a_replica_that_dies_before_the_step_down_undoes_the_hand_over(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (group, old, new):
        await die_in("step_down", new)
        assert "will be the master" in old.broker.store.refusal
        new = await group.start("new", SLAVE)
        await until(lambda: not old.broker.store.refusal)
        assert await send(old, b"second") == 1
        await caught_up(new, old)
        assert await remark_of(new) == ""
        assert (await promote(new)).role == "ASYNC_MASTER"


async def test_a_replica_that_has_lost_the_end_of_its_log_undoes_the_hand_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, old, new):
        await new.broker.stop()
        shutil.copytree(tmp_path / "new", tmp_path / "short")
        new = await group.start("new", SLAVE)
        await send(old, b"second")
        await caught_up(new, old)
        await die_in("copy_tables", new)
        for name in (ROLE_JSON, f"{ROLE_JSON}.bak"):
            shutil.copy(tmp_path / "new" / "config" / name, tmp_path / "short" / "config" / name)
        short = await group.start("short", SLAVE)
        await until(lambda: old.broker.role is MASTER and not old.broker._replicas.promotion.step)
        assert "is made the master again: this replica has the log up to" in caplog.text
        assert await send(old, b"third") == 2
        await caught_up(short, old)
        assert await remark_of(short) == ""


async def test_a_master_whose_successor_never_comes_back_is_put_back_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unfinished_hand_over, "SUCCESSOR_S", 0.0)
    async with pair(tmp_path) as (group, old, new):
        await die_in("copy_tables", new)
        await old.broker.stop()  # it remembers it over a restart
        old = await group.start("old")
        remark = await remark_of(old)
        assert remark == (
            f"this broker has stepped down for {new.broker.address}, which is not known to be the "
            f"master yet; start {new.broker.address}, or make this broker the master again with "
            f"'firetrail replica promote {old.broker.address} --force'"
        )
        await until(lambda: remark in caplog.text)
        assert refusal(await old.ask(RequestCode.PROMOTE_REPLICA)) == remark
        found = await promote(old, force="true")
        assert (found.role, found.epoch, found.hand_over) == ("ASYNC_MASTER", 3, None)
        assert await send(old, b"second") == 1


async def test_the_master_is_not_reached_until_it_runs_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, old, new):
        await die_in("copy_tables", new)
        port = old.broker.address
        await old.broker.stop()
        new = await group.start("new", SLAVE)
        expected = (
            f"{port} was asked to step down for this broker, and the hand-over is not finished: it "
            f"does not answer; it is finished or undone when {port} and this broker run. If {port} "
            f"is lost, use 'firetrail replica promote {new.broker.address} --force'"
        )
        await until(lambda: expected in caplog.text)
        assert await remark_of(new) == expected
        assert refusal(await new.ask(RequestCode.PROMOTE_REPLICA)) == expected
        found = await promote(new, force="true")
        assert (found.role, found.epoch, found.hand_over) == ("ASYNC_MASTER", 3, None)
        await new.broker.stop()
        new = await group.start("new", SLAVE)
        assert (new.broker.role, await remark_of(new)) == (MASTER, "")


async def test_a_replica_that_was_overtaken_by_another_one_gives_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, old, new):
        third = await group.start("third", SLAVE, broker_id=2)
        await caught_up(third, old)
        await die_in("copy_tables", new)
        assert old.broker.replica is not None
        await old.broker.replica.stop()  # it does not find the third one
        assert (await promote(third, force="true")).epoch == 2
        new = await group.start("new", SLAVE)
        await until(lambda: "is over: another master has epoch 2" in caplog.text)
        await caught_up(new, third)
        assert (new.broker.role, await remark_of(new)) == (BrokerRole.SLAVE, "")


async def test_the_hand_over_is_undone_later_if_it_cannot_be_undone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, sync_interval_ms=600_000) as (_, old, new):
        copies_fail(monkeypatch, new.broker)
        monkeypatch.setattr(hand_over, "RESTORE_S", -1.0)
        found = await promote(new)
        assert (found.role, found.step_error) == ("SLAVE", "does not work")
        assert "the hand-over is not finished" in await remark_of(new)
        monkeypatch.setattr(hand_over, "RESTORE_S", 60.0)
        await until(lambda: old.broker.role is MASTER and not old.broker._replicas.promotion.step)
        await until(lambda: new.broker.roles.saved.hand_over is None)  # type: ignore[union-attr]
        assert await send(old, b"second") == 1
