"""``firetrail replica rewind``, for scripts and for people."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.cli.conftest import Firetrail
from tests.cli.replication.test_replica import COMMON, SLAVE, slave_of, wait_for
from tests.helpers import crash_image, put_all

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.replica.saved_role import RoleFile, SavedRole
from firetrail.cli.replication import replica_follow
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.replica.master_check import REQUEST_MAX_S
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The closed store of a former master; the store ``new`` beside it has other last messages."""
    root = tmp_path / "old"
    with BrokerStore.open(root, SMALL, system=SYSTEM) as store:
        put_all(store.embedded, COMMON)
    crash_image(root, tmp_path / "new")
    with BrokerStore.open(root, SMALL, system=SYSTEM) as store:
        put_all(store.embedded, [b"old"] * 3)
    return root


@pytest.fixture
def master(old: Path) -> Iterator[str]:
    with BackgroundBroker(old.with_name("new"), store=SMALL) as broker:
        put_all(broker.store, [b"new"] * 5)
        yield broker.address


def test_rewind_for_people(old: Path, master: str, firetrail: Firetrail) -> None:
    result = firetrail("replica", "rewind", old, "--of", master, "--dry-run")
    assert result.code == 0, result.err
    first, second, third, queue = result.out.splitlines()
    assert first.startswith(f"{old}: the last record in common with {master} is at offset ")
    assert second.startswith("would remove ") and " of the log, from " in second
    assert third.startswith("would remove 3 messages, from physical offset ")
    assert third.endswith("the master does not have them")
    assert queue.startswith("  T/0: 3 messages, offsets 10 to 12, stored ")
    result = firetrail("replica", "rewind", old, "--of", master)
    assert result.code == 0, result.err
    last = result.out.splitlines()[-1]
    assert last.startswith(f"a copy of the removed records is in {old}/dropped-")
    copy = Path(last.rpartition(" ")[2])
    result = firetrail("dump", copy)
    assert (result.code, result.out.count("old"), result.err) == (0, 3, "")
    result = firetrail("dump", copy, "--topic", "T")
    assert (result.code, "no consume queues; leave out --topic" in result.err) == (2, True)
    result = firetrail("fsck", copy, "--repair", "truncate-log")
    assert (result.code, f"{copy} is not a whole store" in result.err) == (2, True)
    result = firetrail("salvage", copy, "--into", old.with_name("saved"))
    said = f"{old.with_name('saved')}: 3 messages that were removed from the store {old}\n"
    assert (result.code, result.out.startswith(said)) == (0, True)
    result = firetrail("replica", "rewind", old, "--of", master)
    assert "there is nothing to remove" in result.out
    with BrokerStore.open(old, SMALL, system=SYSTEM) as store:
        assert [message.body for message in store.embedded.read("T")] == COMMON


def test_rewind_waits_for_a_busy_master(
    old: Path, master: str, firetrail: Firetrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes its role can need some seconds for an answer."""
    limits = []
    ask = RemotingClient.ask

    async def recorded(
        self: RemotingClient, address: str, command: RemotingCommand, timeout_s: float = 0.0
    ) -> RemotingCommand:
        limits.append(timeout_s)
        return await ask(self, address, command, timeout_s)

    monkeypatch.setattr(RemotingClient, "ask", recorded)
    result = firetrail("replica", "rewind", old, "--of", master)
    assert result.code == 0, result.err
    assert set(limits) == {REQUEST_MAX_S}


def test_rewind_for_scripts(old: Path, master: str, firetrail: Firetrail) -> None:
    result = firetrail("replica", "rewind", old, "--of", master, "--yes", "--json")
    assert result.code == 0, result.err
    found = result.json
    assert list(found) == [
        *("store", "master", "master_range", "last_common_record", "end", "previous_end"),
        *("removed_bytes", "removed", "kept_in", "dry_run", "removed_role"),
    ]
    assert found["removed"]["messages"] == 3
    assert found["removed_bytes"] == found["previous_end"] - found["end"] > 0
    assert Path(found["kept_in"]).is_dir()
    assert found["dry_run"] is False


def test_a_promoted_store_follows_again_after_a_rewind(
    old: Path, master: str, firetrail: Firetrail
) -> None:
    """As the guide says: rewind, and start it as a slave with the settings that it had."""
    RoleFile(SYSTEM, old, BrokerRole.SLAVE, 1).save(SavedRole("ASYNC_MASTER", 0, "", "SLAVE", 1))
    result = firetrail("replica", old, "--of", master)
    assert (result.code, "was promoted to ASYNC_MASTER" in result.err) == (2, True)
    result = firetrail("replica", "rewind", old, "--of", master, "--dry-run")
    assert "by command, is removed" not in result.out
    result = firetrail("replica", "rewind", old, "--of", master)
    said = "its role ASYNC_MASTER, which it was given by command, is removed"
    assert (result.code, result.out.splitlines()[-1]) == (0, said)
    replica_follow._check_role(old)
    with BackgroundBroker(old, slave_of(master), SLAVE) as slave:
        assert wait_for(firetrail, slave.address, 0).json["role"] == "SLAVE"


def test_an_empty_promoted_store_follows_after_a_rewind(
    master: str, tmp_path: Path, firetrail: Firetrail
) -> None:
    empty = tmp_path / "empty"
    BrokerStore.open(empty, SMALL, system=SYSTEM).close()
    RoleFile(SYSTEM, empty, BrokerRole.SLAVE, 1).save(SavedRole("ASYNC_MASTER", 0, "", "SLAVE", 1))
    result = firetrail("replica", "rewind", empty, "--of", master)
    assert result.out.splitlines() == [
        f"{empty}: the store has no messages; there is nothing to remove",
        "its role ASYNC_MASTER, which it was given by command, is removed",
    ]
    replica_follow._check_role(empty)
    found = firetrail("replica", "rewind", empty, "--of", master, "--json").json
    assert (found["last_common_record"], found["end"], found["removed_role"]) == (None, 0, None)
    with BackgroundBroker(empty, slave_of(master), SLAVE) as slave:
        assert wait_for(firetrail, slave.address, 0).json["role"] == "SLAVE"


def test_rewind_says_what_is_wrong(old: Path, firetrail: Firetrail) -> None:
    result = firetrail("replica", "rewind", old, "--of", "127.0.0.1:1")
    assert result.code == 2
    assert "the broker of the master does not answer: 127.0.0.1:1" in result.err
    result = firetrail("replica", "rewind", old.with_name("none"), "--of", "127.0.0.1:1")
    assert (result.code, "no such folder" in result.err) == (2, True)


def test_a_diverged_slave_has_an_exit_code_of_its_own(
    old: Path, master: str, firetrail: Firetrail
) -> None:
    with BackgroundBroker(old, slave_of(master), SLAVE) as slave:
        found = wait_for(firetrail, slave.address, 5).json
        assert "firetrail replica rewind" in found["follower"]["error"]
        result = firetrail("replica", "status", slave.address)
        assert result.out.splitlines()[2].startswith(f"diverged: {master}")
        result = firetrail("replica", "promote", slave.address)
        assert result.code == 2
        assert "does not follow its master (diverged: " in result.err
        result = firetrail("replica", "promote", slave.address, "--force")
        assert (result.code, "the replica has diverged (" in result.err) == (2, True)
        assert "If that is intended, use --force --override" in result.err
        result = firetrail("replica", "promote", slave.address, "--override")
        assert (result.code, "--override is possible with --force only" in result.err) == (2, True)
