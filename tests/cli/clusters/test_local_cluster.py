"""The folder of a cluster on one machine, and what ``firetrail cluster up`` refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail
from tests.helpers import PATIENCE_S

from firetrail.cli.clusters.etcd_program import PROGRAM, etcd_command
from firetrail.cli.clusters.local_cluster import ClusterPorts, LocalCluster, create_cluster
from firetrail.cli.replication.member_states import GroupStates, MemberState, MemberView
from firetrail.errors import ConfigError, NoSuchError, NotReachedError
from firetrail.remoting.messages.replica_bodies import GroupReport, ReplicaStatus, SeenReport
from firetrail.replication.group.group_memory import GroupMemory, MemberFile
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

PORTS = ClusterPorts(20911, 19876, 22379)


def test_a_new_cluster_has_settings_for_every_member(tmp_path: Path) -> None:
    cluster = create_cluster(tmp_path / "shop", 3, PORTS)
    assert list(cluster.members) == [1, 2, 3]
    assert [each.address for each in cluster.members.values()] == [
        *("127.0.0.1:20911", "127.0.0.1:20921", "127.0.0.1:20931")
    ]
    assert (cluster.name_server, cluster.etcd) == ("127.0.0.1:19876", "127.0.0.1:22379")
    roles = [each.settings.store.role for each in cluster.members.values()]
    assert roles == [BrokerRole.SYNC_MASTER, BrokerRole.SLAVE, BrokerRole.SLAVE]
    assert not any(each.settings.remarks for each in cluster.members.values())
    assert cluster.member(2).process is None
    with pytest.raises(NoSuchError, match=r"no member 4; the cluster has the members 1, 2, 3"):
        cluster.member(4)


def test_what_is_not_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchError, match=r"there is no cluster; 'firetrail cluster up"):
        LocalCluster(tmp_path)
    member = create_cluster(tmp_path, 2, PORTS).member(2)
    member.conf.write_text("listenPort=1000\n")
    with pytest.raises(ConfigError, match=r"ha_member.*is missing in"):
        LocalCluster(tmp_path)


def test_members_must_agree_on_their_servers(tmp_path: Path) -> None:
    member = create_cluster(tmp_path, 2, PORTS).member(2)
    member.conf.write_text(member.conf.read_text().replace(":19876", ":19877"))
    with pytest.raises(ConfigError, match="must be the same for all members"):
        assert LocalCluster(tmp_path).name_server


def answer(group: str) -> GroupStates:
    """Return the answer of a broker that has the number and the address of member 2."""
    report = GroupReport(number=2, seen=SeenReport(group))
    status = ReplicaStatus("127.0.0.1:20921", "C", "B", 2, "SLAVE", group=report)
    return GroupStates((MemberView(2, status.address, status, MemberState.IN_SYNC, ""),))


def test_a_broker_of_another_cluster_on_the_same_ports_is_not_taken_for_a_member(
    tmp_path: Path,
) -> None:
    cluster = create_cluster(tmp_path / "shop", 3, PORTS)
    with pytest.raises(NotReachedError, match=r"member 2 does not run; .* another cluster"):
        cluster.check_answers(answer("theirs"))
    cluster.check_answers(answer(""))  # it is not known to be another one
    store = cluster.member(2).store
    (store / "config").mkdir(parents=True)
    file = MemberFile(SYSTEM, store)
    file.create()
    file.remember(GroupMemory("ours", 1))
    cluster.check_answers(answer("ours"))
    with pytest.raises(NotReachedError, match=r"shop: member 2 does not run"):
        cluster.check_answers(answer("theirs"))


def test_a_machine_without_etcd_is_told_how_to_get_it(
    firetrail: Firetrail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROGRAM, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = firetrail("cluster", "up", tmp_path / "shop")
    assert result.code == 2
    assert "install it with 'apt install etcd-server'" in result.err
    assert PROGRAM in result.err
    assert not (tmp_path / "shop").exists()


def test_the_ports_of_a_cluster_stay(
    firetrail: Firetrail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROGRAM, "/bin/false")
    create_cluster(tmp_path, 3, PORTS)
    for option, given, present in (
        ("--members", "5", "3"),
        ("--port", "30911", "20911"),
        ("--namesrv-port", "9876", "19876"),
        ("--etcd-port", "2379", "22379"),
    ):
        result = firetrail("cluster", "up", tmp_path, option, given)
        assert result.code == 2
        assert f"{option}" in result.err and f"has {present}; leave the option out" in result.err


def test_an_etcd_that_does_not_start_ends_the_command(tmp_path: Path) -> None:
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho 'bind: address already in use' >&2\nexit 1\n")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "firetrail", "cluster", "up", str(tmp_path / "shop")],
        env=os.environ | {PROGRAM: str(program)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert "error: etcd has not started: bind: address already in use" in done.stderr


def test_etcd_keeps_its_data_and_its_log_in_the_folder(tmp_path: Path) -> None:
    command = etcd_command("etcd", tmp_path / "etcd", tmp_path / "etcd.log", "127.0.0.1", 2379)
    assert command[command.index("--data-dir") + 1] == str(tmp_path / "etcd")
    assert "http://127.0.0.1:2380" in command
    assert not any("unsafe" in argument for argument in command)
