"""The output of ``firetrail replica status``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.broker.brokers import SMALL
from tests.cli.conftest import Firetrail

from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.cli.replication import replica_status
from firetrail.remoting.messages.bodies import KVTable
from firetrail.remoting.messages.replica_bodies import FollowerReport, ReplicaStatus
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.broker_store import BrokerStore
from firetrail.system import SYSTEM

SLAVE_STATUS = ReplicaStatus("a:1", "C", "B", 1, "SLAVE")


async def test_what_a_java_broker_tells_need_not_be_valid() -> None:
    class Client:
        async def ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
            if command.code == RequestCode.GET_BROKER_CONFIG:
                body = b"brokerName=\xff\nbrokerId=one\nbrokerRole=slave"
            else:
                body = KVTable({"commitLogMinOffset": "", "commitLogMaxOffset": "7"}).encode()
            return RemotingCommand(0, {}, body)

    client: Any = Client()
    status = await replica_status._java_status(client, "a:1")
    assert status == ReplicaStatus("a:1", "", "\ufffd", 0, "SLAVE", max_offset=7)
    assert status.is_slave


def test_the_status_of_a_slave_that_follows_does_not_show_an_old_failure() -> None:
    failed = replace(SLAVE_STATUS, step_error="why", follower=FollowerReport("failed"))
    said = "the last change of its role failed: why"
    assert said in replica_status._lines(replica_status._BrokerStatus(failed, []))
    status = replace(failed, follower=FollowerReport("following"))
    assert said not in replica_status._lines(replica_status._BrokerStatus(status, []))


def test_tables_that_cannot_be_copied_for_one_reason_are_one_line() -> None:
    report = FollowerReport("failed", table_errors={"topics": "no answer", "groups": "no answer"})
    lines = replica_status._follower_lines(report)
    assert lines[1:] == ["not copied: topics, groups: no answer"]


def test_the_status_of_a_folder_says_that_it_is_a_replica(
    tmp_path: Path, firetrail: Firetrail
) -> None:
    with BrokerStore.open(tmp_path, SMALL, system=SYSTEM):
        mark = SlaveMark(SYSTEM, tmp_path)
        mark.set(known_epoch=0)
        mark.learn_comparison("DefaultCluster/broker-a", "")
        mark.learn_comparison("DefaultCluster/broker-a", "they differ")
    lines = firetrail("replica", "status", tmp_path).out.splitlines()
    assert "a replica of DefaultCluster/broker-a (cluster/broker)" in lines
    assert "it has diverged: they differ" in lines
    found = firetrail("replica", "status", tmp_path, "--json").json
    assert (found["replica_of"], found["diverged"]) == ("DefaultCluster/broker-a", "they differ")
