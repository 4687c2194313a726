"""Members that are being replaced: started only after the end of a replacement, or its kill."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.broker.groups import BrokerGroup, broker_group
from tests.helpers import eventually

from firetrail.broker.replica.replacement import Replacement
from firetrail.cli.clusters.held_member import held, may_start
from firetrail.cli.clusters.local_cluster import (
    ClusterPorts,
    LocalCluster,
    LocalMember,
    create_cluster,
)
from firetrail.cli.replication.member_states import GroupStates, MemberState, MemberView
from firetrail.errors import FiretrailError, NotReachedError
from firetrail.system import SYSTEM

HOLDER = """
import sys
from pathlib import Path
from firetrail.cli.clusters.held_member import held
from firetrail.cli.clusters.local_cluster import LocalMember

with held(LocalMember(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def replaced_elsewhere(member: LocalMember) -> Iterator[subprocess.Popen[str]]:
    """Another process that replaces a member until it is killed."""
    command = [sys.executable, "-c", HOLDER, str(member.folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def new_cluster(tmp_path: Path) -> LocalCluster:
    return create_cluster(tmp_path / "shop", 3, ClusterPorts(20911, 19876, 22379))


def test_a_member_is_not_started_while_it_is_replaced(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path)
    member = cluster.member(2)
    member.store.mkdir()
    assert may_start(member)
    down = MemberView(2, member.address, None, MemberState.DOWN, "no answer")
    with replaced_elsewhere(member) as process:
        assert member.replacer == process.pid
        assert not may_start(member)
        with (
            pytest.raises(FiretrailError, match=f"already, by process {process.pid}"),
            held(member),
        ):
            pass
        (view,) = cluster.with_replacements(GroupStates((down,))).members
        assert view.reason.startswith(f"'firetrail cluster replace' (process {process.pid})")
    eventually(lambda: member.replacer is None)
    assert member.held.exists()  # it was killed
    assert cluster.with_replacements(GroupStates((down,))).members == (down,)
    assert may_start(member)
    assert not member.held.exists()


def test_a_replacement_that_fails_or_ends_holds_nobody(tmp_path: Path) -> None:
    member = new_cluster(tmp_path).member(2)
    member.store.mkdir()
    with held(member):
        pass
    assert not member.held.exists()
    with pytest.raises(NotReachedError), held(member):
        raise NotReachedError("no etcd")
    assert may_start(member)
    assert not member.held.exists()


def local_member(group: BrokerGroup, folder: Path, number: int) -> LocalMember:
    """Return a member of a group as one of a local cluster; its store is in ``folder/store``."""
    config = group.members[1].config
    folder.mkdir()
    (folder / "broker.conf").write_text(
        f"brokerRole=SLAVE\nbrokerId={number}\nha_member={number}\nlistenPort=20911\n"
        f"brokerName={config.name}\nbrokerClusterName={config.cluster}\n"
        f"etcd_endpoints={group.endpoints[number].url}\n"
    )
    return LocalMember(folder)


async def test_a_replacement_that_was_killed_is_finished_by_the_next_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was killed after the store was moved aside, and before the number was free."""
    async with broker_group(tmp_path) as group:
        member = local_member(group, tmp_path / "member-3", 3)
        await group.stop(3)
        with closing(Replacement(SYSTEM, member.settings.broker, tmp_path / "3")) as replacement:
            await asyncio.to_thread(replacement._until_left)
            replacement._set_aside()
        member.held.touch()
        group.endpoints[3].cut = True
        assert not await asyncio.to_thread(may_start, member)
        assert "member 3 cannot be finished, will retry" in capsys.readouterr().err
        group.endpoints[3].cut = False
        assert group.keys() >= {"members/3"}
        assert await asyncio.to_thread(may_start, member)
        assert not group.keys() & {"members/3"}
        assert "member 3 was interrupted, and is finished" in capsys.readouterr().err
        await group.start(3)
        await group.in_sync(1, 2, 3)
