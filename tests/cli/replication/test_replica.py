"""``firetrail replica``: its actions, for scripts and for people."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL
from tests.cli.conftest import CommandResult, Firetrail
from tests.helpers import eventually, put_all

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.saved_role import HandOverNote, RoleFile
from firetrail.cli.main import main
from firetrail.cli.replication import replica_promote, replica_status
from firetrail.cli.subcommand import ExitCode
from firetrail.errors import RequestError
from firetrail.remoting.messages.admin.admin_bodies import HAConnectionRuntimeInfo, HARuntimeInfo
from firetrail.remoting.messages.replica_bodies import (
    FollowerReport,
    GroupReport,
    HandOverReport,
    ReplicaStatus,
)
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

SLAVE = SMALL.replace(role=BrokerRole.SLAVE)
ANY_PORT = SLAVE.replace(store_host=SLAVE.store_host._replace(port=0))
COMMON = [b"%d" % number for number in range(10)]


def wait_for(firetrail: Firetrail, address: str, code: int) -> CommandResult:
    """Wait until the status of a broker has an exit code."""
    found: list[CommandResult] = []

    def holds() -> bool:
        found.append(firetrail("replica", "status", address, "--json"))
        return found[-1].code == code

    eventually(holds)
    return found[-1]


def lags(firetrail: Firetrail, master: str) -> list[int]:
    """Return how many bytes each replica of a master is behind."""
    status = firetrail("replica", "status", master, "--json").json
    return [replica["diff"] for replica in status["replicas"]]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BackgroundBroker, BackgroundBroker]]:
    """A master with ten messages, and its slave."""
    with BackgroundBroker(tmp_path / "m", store=SMALL) as master:
        put_all(master.store, COMMON)
        with BackgroundBroker(tmp_path / "s", slave_of(master.address), SLAVE) as slave:
            yield master, slave


def slave_of(address: str) -> BrokerConfig:
    return BrokerConfig(
        broker_id=1, master_address=address, ha_heartbeat_ms=50, sync_interval_ms=20
    )


def test_the_status_of_master_and_slave(
    pair: tuple[BackgroundBroker, BackgroundBroker], firetrail: Firetrail
) -> None:
    master, slave = pair
    end = master.store.log_range[1]
    eventually(lambda: lags(firetrail, master.address) == [0])
    eventually(lambda: wait_for(firetrail, slave.address, 0).json["follower"]["lag"] == 0)
    found = wait_for(firetrail, slave.address, 0).json
    assert (found["role"], found["brokerId"], found["maxOffset"]) == ("SLAVE", 1, end)
    assert found["follower"]["state"] == "following"
    assert found["follower"]["masterAddress"] == master.address
    result = firetrail("replica", "status", slave.address)
    first, log, follows, *_ = result.out.splitlines()
    assert first.startswith(f"{slave.address}: SLAVE with id 1 of broker-a in DefaultCluster")
    assert log == f"log: 0 to {end}"
    assert follows.startswith(f"following: {master.address}, 0 B behind, since ")
    result = firetrail("replica", "status", master.address)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith(f"{master.address}: ASYNC_MASTER with id 0 of broker-a")
    assert lines[2].split() == ["replica", "has", "the", "log", "up", "to", "behind"]
    assert lines[3].startswith("127.0.0.1") and str(end) in lines[3]


def test_the_status_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A script with an unset variable must not get the status of the current folder."""
    with pytest.raises(SystemExit):
        main(["replica", "status", ""])
    assert "expected an address or a folder" in capsys.readouterr().err


def test_a_promotion_by_command(
    pair: tuple[BackgroundBroker, BackgroundBroker], firetrail: Firetrail, tmp_path: Path
) -> None:
    master, slave = pair
    eventually(lambda: firetrail("replica", "status", master.address, "--json").json["epoch"] == 1)
    wait_for(firetrail, slave.address, 0)
    result = firetrail("replica", "promote", slave.address)
    assert result.code == 0, result.err
    found = wait_for(firetrail, slave.address, 0).json
    end = found["maxOffset"]
    assert found["epochStartOffset"] == end
    assert result.out == (
        f"{slave.address} is the master (ASYNC_MASTER) of broker-a since offset {end} of its log, "
        "with epoch 2\n"
    )
    assert wait_for(firetrail, master.address, 0).json["role"] == "SLAVE"
    result = firetrail("replica", "promote", slave.address)
    assert (result.code, result.out.splitlines()[1]) == (0, "it was the master already")
    result = firetrail("replica", "promote", slave.address, "--role", "SYNC_MASTER")
    assert result.code == 2
    assert (
        f"{slave.address} is the master already, as ASYNC_MASTER; to make it SYNC_MASTER, change "
        "brokerRole in its broker.conf and restart it"
    ) in result.err
    result = firetrail("replica", "status", tmp_path / "s")
    assert "its role was changed to ASYNC_MASTER with id 0" in result.out
    assert f"2 epochs, the last one 2 from offset {end} on" in result.out
    found = firetrail("replica", "status", tmp_path / "s", "--json").json
    assert (found["role"], found["epochs"][-1]) == ("ASYNC_MASTER", {"epoch": 2, "start": end})
    # The former master may not have copied the new epoch yet, but its number is not used twice.
    result = firetrail("replica", "promote", master.address, "--force", "--override", "--json")
    assert (result.code, result.json["role"], result.json["epoch"]) == (0, "ASYNC_MASTER", 3)


async def test_a_replica_that_no_client_would_find(tmp_path: Path, firetrail: Firetrail) -> None:
    """It has no name server, and its master has told none."""
    async with Broker.running(tmp_path / "m", store=SMALL) as master:
        put_all(master.store, COMMON)
        replica = Broker(tmp_path / "s", slave_of(master.address), ANY_PORT)
        await replica.start()
        promote = "replica", "promote", replica.address, "--force", "--override"
        result = await asyncio.to_thread(firetrail, *promote)
        await replica.stop()
    assert result.code == 0
    assert f"warning: {replica.address} has no name server to register with" in result.err
    assert "restart it with --namesrv" in result.err
    assert "clients do not find it, because it has no name server to register with" in result.out


def test_a_sync_master_without_replicas(tmp_path: Path, firetrail: Firetrail) -> None:
    config = SMALL.replace(role=BrokerRole.SYNC_MASTER, slave_timeout_ms=100)
    with BackgroundBroker(tmp_path / "m", store=config) as master:
        result = firetrail("replica", "status", master.address)
        assert result.code == 8
        assert result.out.splitlines()[2] == (
            "does not confirm messages: no replica in sync, but 2 copies are required, the "
            "master's own included"
        )
        result = firetrail("send", "T", "one", "--namesrv", master.namesrv)
        assert result.code == 8
        assert result.out.startswith("SLAVE_NOT_AVAILABLE ")
        assert "a failover may still remove what is not confirmed" in result.err
        assert "1 message stored, but not confirmed" in result.err
        with BackgroundBroker(tmp_path / "s", slave_of(master.address), SLAVE):
            assert wait_for(firetrail, master.address, 0).json["unconfirmed"] == ""
            assert firetrail("send", "T", "two", "--namesrv", master.namesrv).code == 0


def test_a_slave_without_a_master_tries_again(tmp_path: Path, firetrail: Firetrail) -> None:
    with BackgroundBroker(tmp_path, slave_of("127.0.0.1:1"), SLAVE) as slave:
        found = wait_for(firetrail, slave.address, 3).json
        assert found["follower"]["state"] in ("checking", "failed")


def test_a_broker_that_does_not_answer(firetrail: Firetrail) -> None:
    for action in ("status", "promote"):
        result = firetrail("replica", action, "127.0.0.1:1")
        assert result.code == 2
        assert "127.0.0.1:1: cannot be reached" in result.err
    result = firetrail("replica", "status", "nowhere")
    assert (result.code, "no such folder" in result.err) == (2, True)


def test_the_address_of_a_name_server_is_named(firetrail: Firetrail) -> None:
    with BackgroundBroker(store=SMALL) as broker:
        for action in ("status", "promote"):
            result = firetrail("replica", action, broker.namesrv)
            assert result.code == 2
            assert (
                f"{broker.namesrv} is the address of a name server, not of a broker; give the "
                f"address of a broker (the masters that it knows: broker-a at {broker.address})"
            ) in result.err


def test_a_broker_that_is_slow_during_a_promotion_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, firetrail: Firetrail
) -> None:
    busy = TimeoutError("a:1: no answer within 3 s")
    answers: list[ReplicaStatus | Exception] = [SLAVE_STATUS, SLAVE_STATUS, busy, MASTER]
    monkeypatch.setattr(replica_promote, "ask_status", answering(answers))
    result = firetrail("replica", "promote", "a:1")
    assert (result.code, result.err) == (0, "")
    slow = [SLAVE_STATUS, SLAVE_STATUS, replace(SLAVE_STATUS, step="opening the store")]
    monkeypatch.setattr(replica_promote, "ask_status", answering(slow))
    monkeypatch.setattr(replica_promote, "CHANGE_WAIT_S", 0.05)
    result = firetrail("replica", "promote", "a:1")
    assert result.code == 7
    assert (
        "a:1 has not finished the change within 0.05 s, and is opening the store; 'firetrail "
        "replica status a:1' shows its progress"
    ) in result.err


def test_a_promotion_during_another_change_of_the_role(
    monkeypatch: pytest.MonkeyPatch, firetrail: Firetrail
) -> None:
    busy = RequestError(ResponseCode.SYSTEM_BUSY, "a:1: the role of a:1 is being changed: copying")
    monkeypatch.setattr(replica_promote, "ask_status", answering([SLAVE_STATUS, busy]))
    result = firetrail("replica", "promote", "a:1")
    assert (result.code, result.out) == (7, "")
    assert "copying; 'firetrail replica status a:1' shows its progress" in result.err


def test_a_promotion_prints_where_the_epoch_begins(
    monkeypatch: pytest.MonkeyPatch, firetrail: Firetrail
) -> None:
    """The new master may have stored messages before it is asked for its status."""
    after = replace(MASTER, epoch=3, max_offset=900, epoch_start_offset=400)
    monkeypatch.setattr(replica_promote, "ask_status", answering([SLAVE_STATUS] * 2 + [after]))
    result = firetrail("replica", "promote", "a:1")
    assert result.out == (
        "a:1 is the master (ASYNC_MASTER) of B since offset 400 of its log, with epoch 3\n"
    )


def answering(answers: Sequence[ReplicaStatus | Exception]) -> Callable[..., Any]:
    """Return a request that gets these answers; further ones are not given in time."""
    left = iter(answers)

    async def ask(*_: object) -> ReplicaStatus:
        answer = next(left, TimeoutError("no answer"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def test_without_an_action_the_help_is_printed(firetrail: Firetrail) -> None:
    result = firetrail("replica")
    assert result.code == 2
    assert "rewind" in result.err


SLAVE_STATUS = ReplicaStatus("a:1", "C", "B", 1, "SLAVE")
MASTER = replace(SLAVE_STATUS, role="ASYNC_MASTER", broker_id=0)
UNFINISHED = HandOverReport("m:1", "a:1", 2, "m:1 does not answer")


def test_the_status_of_an_unfinished_hand_over() -> None:
    status = replace(SLAVE_STATUS, hand_over=UNFINISHED)
    lines = replica_status._lines(replica_status._BrokerStatus(status, []))
    assert lines[2:] == ["no master: m:1 does not answer"]
    assert replica_status._exit_code(status) == ExitCode.UNFINISHED
    status = replace(status, step="making the former master the master again")
    assert replica_status._exit_code(status) == ExitCode.UNFINISHED, "nobody is the master"


def test_the_status_of_a_folder_shows_an_unfinished_hand_over(
    tmp_path: Path, firetrail: Firetrail
) -> None:
    with BrokerStore.open(tmp_path, SMALL, system=SYSTEM):
        roles = RoleFile(SYSTEM, tmp_path, BrokerRole.SLAVE, 1)
        roles.begin_hand_over(1, HandOverNote("m:1", "a:1", 2, "ASYNC_MASTER", "ASYNC_MASTER"))
    result = firetrail("replica", "status", tmp_path)
    assert "m:1 was asked to step down for this broker, and the hand-over is not" in result.out
    assert "its role was changed" not in result.out
    found = firetrail("replica", "status", tmp_path, "--json").json
    assert "use 'firetrail replica promote ADDRESS --force'" in found["unfinished_hand_over"]


@pytest.mark.parametrize(
    ("after", "code", "said"),
    [
        (replace(SLAVE_STATUS, step_error="why"), 2, "a:1 was not promoted: why"),
        (SLAVE_STATUS, 2, "a:1 was not promoted: it was restarted meanwhile, and is a slave"),
        (
            replace(SLAVE_STATUS, hand_over=UNFINISHED, step_error="why"),
            7,
            "a:1 is not the master yet: m:1 does not answer",
        ),
        (
            ConnectionError("a:1: the connection was closed"),
            7,
            "a:1: the connection was closed; 'firetrail replica status a:1' shows the outcome when "
            "the broker runs again",
        ),
    ],
    ids=["failed", "restarted", "unfinished", "gone"],
)
def test_the_exit_code_of_a_promotion_that_did_not_make_a_master(
    monkeypatch: pytest.MonkeyPatch,
    firetrail: Firetrail,
    after: ReplicaStatus | Exception,
    code: int,
    said: str,
) -> None:
    answers = answering([SLAVE_STATUS, SLAVE_STATUS, after])
    monkeypatch.setattr(replica_promote, "ask_status", answers)
    result = firetrail("replica", "promote", "a:1")
    assert (result.code, result.out) == (code, "")
    assert said in result.err


def test_the_end_of_the_log_is_from_the_same_moment_as_the_replicas() -> None:
    status = ReplicaStatus("a:1", "C", "B", 0, "ASYNC_MASTER", max_offset=1000)
    ha = HARuntimeInfo(3000, ha_connection_info=[HAConnectionRuntimeInfo("b:1", 2000, 1000)])
    lines = replica_status._lines(replica_status._with_replicas(status, ha))
    assert lines[1] == "log: 0 to 3000"
    assert lines[3].split() == ["b:1", "2000", "1000", "B"]
    lines = replica_status._lines(replica_status._with_replicas(status, HARuntimeInfo()))
    assert lines[1:] == ["log: 0 to 1000"]


INCOMPLETE = FollowerReport("following", "m:1", 5000, 0, missing=2048, master_min_offset=1000)


def test_the_status_of_a_slave_that_lacks_old_messages() -> None:
    status = replace(SLAVE_STATUS, follower=INCOMPLETE)
    lines = replica_status._lines(replica_status._BrokerStatus(status, []))
    assert lines[3] == (
        "lacks old messages: its log begins 2.0 KiB after that of the master, at 1000"
    )
    assert replica_status._exit_code(status) == ExitCode.INCOMPLETE
    status = replace(SLAVE_STATUS, follower=replace(INCOMPLETE, state="stuck"))
    assert replica_status._exit_code(status) == ExitCode.STUCK


def test_a_promotion_by_force_says_which_old_messages_are_lost(
    monkeypatch: pytest.MonkeyPatch, firetrail: Firetrail
) -> None:
    before = replace(SLAVE_STATUS, follower=INCOMPLETE, max_offset=5000)
    monkeypatch.setattr(replica_promote, "ask_status", answering([before, before, MASTER]))
    result = firetrail("replica", "promote", "a:1", "--force")
    assert result.code == 0
    assert result.out.splitlines()[1] == (
        "it lacks old messages: the log of its master began 2.0 KiB earlier, at 1000, when it last "
        "answered"
    )


def test_a_member_that_refuses_etcd_has_an_exit_code_of_its_own() -> None:
    group = GroupReport(doubt="coordinator-older", refusal="etcd was restored; do this")
    status = ReplicaStatus("a:1", "C", "B", 2, "SLAVE", group=group)
    assert replica_status._exit_code(status) == ExitCode.DOUBTS


@pytest.mark.parametrize(
    ("group", "lines"),
    [
        (
            GroupReport("10.0.0.1:10911", 1, 7, [1, 2], "member 1 holds the lease"),
            ["group: member 1 at 10.0.0.1:10911 holds lease 7; in-sync members: 1, 2"],
        ),
        (
            GroupReport("", 0, 0, [1], "its log is too short", "etcd does not answer"),
            [
                "group: no member holds the lease; in-sync members: 1",
                "this member cannot be elected: its log is too short",
                "failover does not work at the moment: etcd does not answer",
            ],
        ),
        (
            GroupReport("", 0, 0, [1], "", "no room", problem="full-disk"),
            [
                "group: no member holds the lease; in-sync members: 1",
                "this member takes no part in the group, because its disk is full: no room",
            ],
        ),
        (
            GroupReport("10.0.0.1:10911", 1, 7, [1, 2], older_master="replace member 1"),
            [
                "group: member 1 at 10.0.0.1:10911 holds lease 7; in-sync members: 1, 2",
                "do not rewind this member: replace member 1",
            ],
        ),
        (
            GroupReport(doubt="coordinator-older", refusal="etcd was restored; do this"),
            ["group: no master (coordinator-older): etcd was restored; do this"],
        ),
        (
            GroupReport(doubt="decided-without", refusal="replace it"),
            ["group: takes no part (decided-without): replace it"],
        ),
    ],
    ids=["held", "free", "full disk", "older master", "refused", "left out"],
)
def test_the_status_shows_the_group(group: GroupReport, lines: list[str]) -> None:
    status = ReplicaStatus("a:1", "C", "B", 2, "SLAVE", group=group)
    assert replica_status._lines(replica_status._BrokerStatus(status, []))[2:] == lines
