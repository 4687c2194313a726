"""Members of a group with damaged records: others are elected first."""

from pathlib import Path

import pytest
from tests.broker.groups import broker_group, status_of
from tests.client.clusters import until

from firetrail.errors import StoreDamagedError
from firetrail.replication.group import precedence

DAMAGE = StoreDamagedError("commitlog/0", 7, 7, "flipped", "none")


@pytest.mark.parametrize("damaged", [2, 3])
async def test_a_good_member_is_elected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    """However long it takes on a busy machine."""
    monkeypatch.setattr(precedence, "YIELD_S", 1e9)
    async with broker_group(tmp_path) as group:
        ledger = group.members[damaged].broker_store.damage
        monkeypatch.setattr(ledger, "settle", lambda *place, is_repaired: None)
        ledger.note(DAMAGE)
        group.cut_off(1)
        group.end_lease()
        assert await group.master(other_than=1) == 5 - damaged
        await until(lambda: status_of(group.members[damaged]).holder is not None)


async def test_a_damaged_one_is_elected_if_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_group(tmp_path, members=2) as group:
        ledger = group.members[2].broker_store.damage
        monkeypatch.setattr(ledger, "settle", lambda *place, is_repaired: None)
        ledger.note(DAMAGE)
        group.cut_off(1)
        group.end_lease()
        assert await group.master(other_than=1) == 2
    assert "damaged places in the log: 1" in caplog.text


async def test_members_without_name_servers_know_each_other(tmp_path: Path) -> None:
    """A master asks the members of its group for good records."""
    async with broker_group(tmp_path) as group:
        others = {group.members[number].address for number in (2, 3)}
        term = group.members[1]._terms.current
        await until(lambda: others <= set(status_of(group.members[1]).addresses.values()))
        assert set(await term._peers()) == others
