"""A replica follows a master only if their logs are the same, and says why it does not."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tests.client.clusters import until
from tests.helpers import crash_image
from tests.replication.logs import log_content
from tests.replication.masters import MASTER, QUICK, REPLICA, master_in, replica_in, state_of

from firetrail import Message
from firetrail.broker.broker import Broker
from firetrail.errors import NotReachedError
from firetrail.format.names import COMMIT_LOG
from firetrail.remoting.connections.remoting_client import REQUEST_S, RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.replica import missing_messages
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import MasterAddress
from firetrail.store.settings.store_config import BrokerRole

FOLLOWING, STUCK = FollowerState.FOLLOWING, FollowerState.STUCK
DIVERGED, FAILED, WAITING = FollowerState.DIVERGED, FollowerState.FAILED, FollowerState.WAITING


def assert_same_log(folder: Path, end: int) -> None:
    assert log_content(folder / "r")[:end] == log_content(folder / "m")[:end]


async def test_an_empty_replica_gets_everything(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(400)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            await until(lambda: replica.follower.status.master_max == replica.end)
            # The thread of the connection counts bytes after it has appended them.
            await until(lambda: replica.follower.status.received >= replica.end - 1)
            await until(
                lambda: replica.follower.status.read_at_ms >= replica.follower.status.since_ms > 0
            )
            status = replica.follower.status
            assert status.state is FOLLOWING
            assert (status.lag, status.error, status.master) == (0, "", master.address)
        assert_same_log(tmp_path, master.store.log.max_offset)


async def test_an_empty_replica_begins_with_the_masters_oldest_file(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(400)
    delete_oldest(tmp_path / "m", 2)
    async with master_in(tmp_path / "m") as master:
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.store.embedded.log_range == master.store.embedded.log_range)
        assert master.store.log.min_offset == 2 * MASTER.commit_log_file_size


def delete_oldest(folder: Path, count: int) -> None:
    """Delete the oldest files of a log, as retention does."""
    for path in sorted((folder / COMMIT_LOG).iterdir())[:count]:
        path.unlink()


async def test_a_replica_that_has_deleted_more_than_its_master_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        master_in(tmp_path / "m") as master,
        replica_in(tmp_path / "r", master.address, REPLICA.replace(delete_batch_max=1)) as replica,
    ):
        master.fill(400)
        await until(lambda: replica.end == master.store.log.max_offset)
        await state_of(replica, FOLLOWING)
        assert replica.follower.status.missing == 0
        replica.store.removal.settle()
        assert replica.store.embedded.delete_expired(forced=True) == 1
        begin = replica.store.log.min_offset
        status = replica.follower.status
        assert (status.own_min, status.master_min, status.missing) == (begin, 0, begin)
        await until(lambda: replica.follower._missing._since is not None)
        assert "has deleted" not in caplog.text  # the master may delete as much within a minute
        monkeypatch.setattr(missing_messages, "MISSING_S", 0.0)
        await until(lambda: "has deleted" in caplog.text)
        before = len(master.asked)
        await until(lambda: len(master.asked) > before + 2)  # it looks again, and says it once
        (said,) = (text for text in caplog.messages if "has deleted" in text)
        assert said == (
            f"this replica has deleted {begin} bytes of messages that its master still has: its "
            f"log begins at {begin}, that of the master at 0; if the replica becomes the master, "
            "consumers can no longer read them"
        )
        master.figures["commitLogMinOffset"] = str(begin)
        await until(lambda: replica.follower.status.missing == 0)


async def test_only_a_firetrail_master_says_what_a_replica_may_show(tmp_path: Path) -> None:
    """A Java master shows its whole log to consumers, and its replicas do the same."""
    unconfirmed = MASTER.replace(role=BrokerRole.SYNC_MASTER, in_sync_replicas=3)
    async with master_in(tmp_path / "m", unconfirmed) as master:
        master.store.embedded.try_put(Message("T", b"one"))
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.store.embedded.max_offset("T") == 1)
        master.settings["ha_allowed_peers"] = ""
        master.store.embedded.try_put(Message("T", b"two"))
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            await until(lambda: replica.store.log.confirmed_offset == 0)
            assert replica.store.embedded.max_offset("T") == 1
            master.store.configure(in_sync_replicas=2)
            await until(lambda: replica.store.embedded.max_offset("T") == 2)


async def test_an_empty_firetrail_master_is_followed_at_once(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.settings["ha_allowed_peers"] = ""
        async with replica_in(tmp_path / "r", master.address) as replica:
            await state_of(replica, FOLLOWING)
            await until(lambda: master.acks.in_sync(0) == 1)
            master.fill(3)
            await until(lambda: replica.end == master.store.log.max_offset)


async def test_a_replica_waits_for_the_first_message_of_a_java_master(tmp_path: Path) -> None:
    async with (
        master_in(tmp_path / "m") as master,
        replica_in(tmp_path / "r", master.address) as replica,
    ):
        await state_of(replica, WAITING, "the master has no messages yet")
        master.fill(3)
        await until(lambda: replica.end == master.store.log.max_offset)


async def test_a_replica_continues_where_it_stopped(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        for _ in range(4):  # some stops are at the beginning of a file
            master.fill(40)
            async with replica_in(tmp_path / "r", master.address) as replica:
                await until(lambda: replica.end == master.store.log.max_offset)
        assert_same_log(tmp_path, master.store.log.max_offset)


async def test_a_replica_follows_again_after_the_master_restarts(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            await master.stop()
            error = await state_of(replica, FAILED)
            assert "master" in error
            async with master_in(tmp_path / "m") as again:
                again.fill(10)
                replica.follower.follow(again.address)
                await until(lambda: replica.end == again.store.log.max_offset)
                await state_of(replica, FOLLOWING)


async def test_a_master_that_lost_its_tail_and_grew_past_the_replica(tmp_path: Path) -> None:
    """Java's master would send the bytes after the replica's end, and join two histories (T8)."""
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        crash_image(tmp_path / "m", tmp_path / "older")
        master.fill(10, "lost")
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
    before = log_content(tmp_path / "r")
    async with (
        master_in(tmp_path / "older") as older,
        replica_in(tmp_path / "r", older.address) as replica,
    ):
        error = await state_of(replica, DIVERGED, "the master only up to")
        assert f"firetrail replica rewind STORE --of {older.address.broker}" in error
        older.fill(50, "other")
        await until(lambda: "differ" in replica.follower.status.error)
        assert replica.follower.status.state is DIVERGED
        assert len(list(replica.store.embedded.read("T"))) == 20  # reads go on
        assert not older.ha.connections
    assert log_content(tmp_path / "r") == before


async def test_a_different_history_of_the_same_length_is_not_followed(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master, master_in(tmp_path / "other") as other:
        master.fill(10, "a")
        other.fill(10, "b")
        assert master.store.embedded.log_range == other.store.embedded.log_range
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            replica.follower.follow(other.address)
            await state_of(replica, DIVERGED, "their records at offset")


async def test_a_replica_behind_the_masters_oldest_file_is_stuck(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            end = replica.end
        master.fill(400)
    delete_oldest(tmp_path / "m", 2)
    async with (
        master_in(tmp_path / "m") as master,
        replica_in(tmp_path / "r", master.address) as replica,
    ):
        begin = 2 * MASTER.commit_log_file_size
        error = await state_of(replica, STUCK, f"{begin - end} bytes cannot be copied")
        assert f"up to {end}" in error and f"before {begin}" in error
        assert len(list(replica.store.embedded.read("T"))) == 10  # reads go on


async def test_heartbeats_alone_are_reported_as_stuck(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            master.figures["commitLogMaxOffset"] = "12345678"
            error = await state_of(replica, STUCK, "nothing but heartbeats")
            assert f"up to {replica.end}, the master up to 12345678" in error
            master.figures.clear()
            master.fill(1)
            await state_of(replica, FOLLOWING)
            assert replica.follower.status.error == ""


async def test_a_member_of_a_group_does_not_ask_for_a_rewind_that_its_group_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with master_in(tmp_path / "m") as master, master_in(tmp_path / "o") as other:
        master.fill(10, "a")
        other.fill(9, "b")
        member = replace(QUICK, member=2)
        async with replica_in(tmp_path / "r", master.address, settings=member) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            replica.follower.follow(other.address)
            await state_of(replica, DIVERGED, "are removed before the replica follows")
    said = [record for record in caplog.records if "are removed before" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.INFO]
    assert "rewind" not in caplog.text


async def test_files_of_another_length_are_refused(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        config = REPLICA.replace(commit_log_file_size=32 << 10)
        async with replica_in(tmp_path / "r", master.address, config) as replica:
            error = await state_of(replica, FAILED, "the replica's 32768")
            assert "set mappedFileSizeCommitLog of the replica to 16384" in error
            assert replica.end == 0


async def test_a_master_that_refuses_questions_is_not_followed(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        master.refusal = "no AccessKey"
        async with replica_in(tmp_path / "r", master.address) as replica:
            error = await state_of(replica, FAILED, "no AccessKey")
            assert "26 GET_BROKER_CONFIG" in error and "sign as a super user" in error
            master.refusal = ""
            await until(lambda: replica.end == master.store.log.max_offset)


async def test_a_slow_master_gets_more_time_with_every_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    answered = RemotingClient.ask

    async def ask(
        client: RemotingClient, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO and len(limits) < 6:
            limits.append(timeout_s)
            raise TimeoutError(f"{address}: no answer within {timeout_s:g} s")
        return await answered(client, address, command, timeout_s)

    monkeypatch.setattr(RemotingClient, "ask", ask)
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            replica.follower.follow(None)
            await state_of(replica, WAITING, "no master is known")
            assert replica.follower._request_s == REQUEST_S  # for the next master
    assert limits == [3.0, 6.0, 12.0, 24.0, 24.0, 24.0]


async def test_a_slave_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a hand-over this is expected, so it is a warning only if it lasts."""
    caplog.set_level(logging.INFO)
    async with master_in(tmp_path / "m") as master:
        master.settings["brokerRole"] = "SLAVE"
        async with replica_in(tmp_path / "r", master.address) as replica:
            await state_of(replica, FAILED, "is a slave itself")
            why = f"the broker at {master.address.broker} is a slave itself; follow its master"
            (first,) = (record for record in caplog.records if why in record.getMessage())
            assert first.levelno == logging.INFO
            monkeypatch.setattr(replica.follower._journal._reminders, "is_due", lambda text: True)
            await until(
                lambda: any(
                    why in record.getMessage() and record.levelno == logging.WARNING
                    for record in caplog.records
                )
            )


async def test_the_ha_address_that_the_master_tells_is_named_if_it_is_wrong(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(1)
        master.settings["haListenPort"] = "1"
        async with replica_in(tmp_path / "r", master.address) as replica:
            error = await state_of(replica, FAILED, "127.0.0.1:1")
            assert "brokerIP2 and haListenPort" in error and "haMasterAddress" in error


async def test_a_master_without_an_ha_port(tmp_path: Path) -> None:
    async with master_in(tmp_path / "m") as master:
        del master.settings["haListenPort"]
        async with replica_in(tmp_path / "r", master.address) as replica:
            await state_of(replica, FAILED, "does not report its HA port")


async def test_the_old_master_is_left_at_once(tmp_path: Path) -> None:
    """T13: the connection to the old master lives, and another master is to be followed."""
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            crash_image(tmp_path / "m", tmp_path / "new")
            async with master_in(tmp_path / "new") as new:
                replica.follower.follow(new.address)
                master.fill(10, "old")
                await until(lambda: not master.ha.connections)
                new.fill(20, "new")
                await until(lambda: replica.end == new.store.log.max_offset)
                await state_of(replica, FOLLOWING)
                bodies = [message.body for message in replica.store.embedded.read("T")]
                assert not any(body.startswith(b"old") for body in bodies)
                replica.follower.follow(None)
                await state_of(replica, WAITING, "no master is known")
                await until(lambda: not new.ha.connections)


async def test_a_master_that_does_not_answer_is_left_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    answered = RemotingClient.ask

    async def ask(
        client: RemotingClient, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if address == "127.0.0.1:1":
            asked.set()
            await asyncio.Event().wait()
        return await answered(client, address, command, timeout_s)

    monkeypatch.setattr(RemotingClient, "ask", ask)
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", MasterAddress("127.0.0.1:1")) as replica:
            await asked.wait()
            replica.follower.follow(master.address)
            await until(lambda: replica.end == master.store.log.max_offset)


async def test_nothing_is_copied_before_the_history_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is replaced between the check and the connection to its HA port."""
    async with master_in(tmp_path / "m") as master, master_in(tmp_path / "other") as other:
        master.fill(10, "a")
        other.fill(50, "b")
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
        end = master.store.log.max_offset
        served = master.store
        master.settings["haListenPort"] = str(other.port.port)
        ask_twice = master.asked.count(RequestCode.VIEW_MESSAGE_BY_ID) + 1

        def swap(*_: object) -> None:
            if master.asked.count(RequestCode.VIEW_MESSAGE_BY_ID) == ask_twice:
                master.store = other.store

        monkeypatch.setattr("firetrail.replication.ha.ha_client.HAClient.connect", swap)
        try:
            async with replica_in(tmp_path / "r", master.address) as replica:
                await state_of(replica, DIVERGED, "differ")
                assert replica.end == end
        finally:
            master.store = served


async def test_a_real_broker_is_followed(tmp_path: Path) -> None:
    async with Broker.running(tmp_path / "m", store=MASTER) as broker:
        store = broker.store
        for number in range(100):
            store.put(Message("T", b"%d" % number))
        address = MasterAddress(broker.address)
        for _ in range(2):
            async with replica_in(tmp_path / "r", address) as replica:
                await until(lambda: replica.end == store.log_range[1])
                await state_of(replica, FOLLOWING)


async def test_a_divergence_is_logged_once_although_the_master_grows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
    async with (
        master_in(tmp_path / "other") as other,
        replica_in(tmp_path / "r", other.address) as replica,
    ):
        for _ in range(3):
            other.fill(1)
            await state_of(replica, DIVERGED, f"the master only up to {other.store.log.max_offset}")
    assert caplog.text.count("the replica has diverged: ") == 1


async def test_a_connection_that_fails_again_and_again_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def follow(*_: object) -> None:
        raise NotReachedError("the master has closed the HA connection")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr("firetrail.replication.ha.ha_client.HAClient.follow", follow)
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address):
            await until(lambda: master.asked.count(RequestCode.GET_BROKER_CONFIG) > 4)
    assert caplog.text.count("following master ") == 1
    assert caplog.text.count("the replica cannot follow: the master has closed") == 1


async def test_a_master_that_stops_answering_is_followed_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with master_in(tmp_path / "m") as master:
        master.fill(10)
        async with replica_in(tmp_path / "r", master.address) as replica:
            await until(lambda: replica.end == master.store.log.max_offset)
            master.refusal = "check signature failed."
            before = len(master.asked)
            await until(lambda: len(master.asked) > before + 3)
            master.fill(10)
            await until(lambda: replica.end == master.store.log.max_offset)
            assert replica.follower.status.state is FOLLOWING
    assert caplog.text.count("the end of the master's log is not known: ") == 1
