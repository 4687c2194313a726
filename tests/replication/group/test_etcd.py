"""Elections on etcd: every case against a fake server, and against a real one if there is one."""

import shutil
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL

import pytest
from tests.helpers import PATIENCE_S
from tests.replication.etcd_server import etcd_server
from tests.replication.fake_etcd import FakeEtcd, fake_etcd

from firetrail.errors import ConfigError, ElectionError, NotReachedError
from firetrail.replication.group.etcd import EtcdCoordinator, _put
from firetrail.replication.group.etcd_gateway import EtcdAccess
from firetrail.replication.group.group_memory import GroupMemory
from firetrail.replication.group.group_view import (
    Candidate,
    ConfirmedNote,
    GroupView,
    InSyncSet,
    LeaseHolder,
    MemberReport,
    SetChange,
)
from firetrail.system import SYSTEM

TTL_S = 2


class Group:
    """Members of one group, which reach etcd at the given addresses."""

    def __init__(self, *endpoints: str) -> None:
        self.endpoints = endpoints

    def member(self, prefix: str = "/firetrail/c/g", **access: str) -> EtcdCoordinator:
        settings = EtcdAccess(self.endpoints, **access)  # type: ignore[arg-type]
        return EtcdCoordinator(settings, prefix, TTL_S, SYSTEM.clock)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as address:
        yield address


@pytest.fixture(params=["fake", "real"])
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    if request.param == "real":
        yield Group(request.getfixturevalue("real"))
        return
    with fake_etcd() as etcd:
        yield Group(etcd.endpoint().url)


@pytest.fixture
def fake() -> Iterator[FakeEtcd]:
    with fake_etcd() as etcd:
        yield etcd


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A prefix that no other test uses."""
    return f"/firetrail/{tmp_path.name}"


def candidate(member: int) -> Candidate:
    return Candidate(member, f"127.0.0.1:1{member}", f"127.0.0.1:2{member}", f"token {member}")


def asked(member: int, expected: InSyncSet | None) -> tuple[InSyncSet | None, InSyncSet]:
    """Return the request of a member's campaign."""
    base = expected or InSyncSet(frozenset({member}), 0, 0)
    return expected, base.next(base.members, base.offset, 1000 + member)


def change(view: GroupView, members: set[int], offset: int, epoch: int = 0) -> SetChange:
    """A change of the in-sync set in a view, by its holder."""
    assert view.in_sync is not None
    held = epoch or (view.holder.epoch if view.holder is not None else 0)
    return SetChange(held, view.in_sync, view.in_sync.next(frozenset(members), offset))


def holder_of(view: GroupView) -> int | None:
    return view.holder.member if view.holder is not None else None


def entries(view: GroupView) -> tuple[LeaseHolder | None, InSyncSet | None]:
    """The entries of a group; the revision also changes with other groups."""
    return view.holder, view.in_sync


def test_only_the_holder_writes_down_what_is_confirmed(group: Group, prefix: str) -> None:
    one = group.member(prefix)
    view = one.campaign(candidate(1), *asked(1, None))
    assert view.holder is not None and view.confirmed is None
    note = ConfirmedNote("aa", 1, 500)
    assert one.note_confirmed(view.holder.epoch + 1, note).confirmed is None
    assert one.note_confirmed(view.holder.epoch, note).confirmed == note
    assert group.member(prefix).watch(0, 0).confirmed == note
    one.resign()
    late = one.note_confirmed(view.holder.epoch, ConfirmedNote("aa", 1, 900))
    assert late.confirmed == note


def test_the_founder_wins_and_is_the_in_sync_set(group: Group, prefix: str) -> None:
    one = group.member(prefix)
    assert one.watch(0, 0).in_sync is None
    view = one.campaign(candidate(1), *asked(1, None))
    assert view.holder is not None and view.in_sync is not None
    assert (view.holder.member, view.holder.address) == (1, "127.0.0.1:11")
    assert (view.holder.ha_address, view.holder.token) == ("127.0.0.1:21", "token 1")
    assert view.holder.epoch == view.revision
    assert (sorted(view.in_sync.members), view.in_sync.offset) == ([1], 0)
    assert (view.in_sync.revision, view.in_sync.lineage.version) == (view.revision, 1)
    assert view.in_sync.lineage.is_genuine(view.in_sync.members, view.in_sync.offset)
    assert entries(group.member(prefix).watch(0, 0)) == entries(view)


def test_a_second_candidate_loses(group: Group, prefix: str) -> None:
    one, two = group.member(prefix), group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    assert entries(two.campaign(candidate(2), *asked(2, None))) == entries(won)
    assert entries(two.campaign(candidate(2), *asked(2, won.in_sync))) == entries(won)
    assert one.renew()


def test_a_campaign_expects_the_in_sync_set_that_the_candidate_knows(
    group: Group, prefix: str
) -> None:
    one, two = group.member(prefix), group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    assert won.holder is not None and won.in_sync is not None
    changed = one.change_in_sync(change(won, {1, 2}, 7))
    assert changed.in_sync is not None
    assert (sorted(changed.in_sync.members), changed.in_sync.offset) == ([1, 2], 7)
    assert changed.in_sync.revision == changed.revision
    one.resign()
    assert holder_of(two.campaign(candidate(2), *asked(2, won.in_sync))) is None
    assert holder_of(two.campaign(candidate(2), *asked(2, None))) is None
    after = two.campaign(candidate(2), *asked(2, changed.in_sync))
    assert after.holder is not None and after.holder.member == 2
    assert after.holder.epoch > won.holder.epoch
    assert after.in_sync is not None and after.in_sync.members == changed.in_sync.members
    assert changed.in_sync.lineage.id in after.in_sync.lineage.history


def test_a_holder_of_an_older_epoch_cannot_change_the_set(group: Group, prefix: str) -> None:
    one, two = group.member(prefix), group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    assert won.holder is not None and won.in_sync is not None
    one.resign()
    again = two.campaign(candidate(2), *asked(2, won.in_sync))
    late = change(again, {1}, 9, epoch=won.holder.epoch)
    assert entries(one.change_in_sync(late)) == entries(again)


def test_a_change_expects_the_content_of_the_set_and_not_only_its_revision(
    group: Group, prefix: str
) -> None:
    one = group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    assert won.holder is not None and won.in_sync is not None
    other = replace(won.in_sync, lineage=won.in_sync.next(frozenset({1}), 0).lineage)
    repeated = SetChange(won.holder.epoch, other, other.next(frozenset({1, 2}), 9))
    assert entries(one.change_in_sync(repeated)) == entries(won)


def test_members_see_what_others_report_until_it_is_withdrawn(group: Group, prefix: str) -> None:
    one, two = group.member(prefix), group.member(prefix)
    assert one.claim(1, "store 1") == "store 1"
    report = MemberReport(GroupMemory("ab", 3, 1001, ["a", "b"], 0, [1, 2], 7, [1, 2]), 99, 88)
    one.report(1, report)
    view = two.watch(0, 0)
    assert (view.identities, view.reports) == ({1: "store 1"}, {1: report})
    one.report(1, None)
    assert two.watch(0, 0).reports == {}


def test_an_operator_replaces_the_set_while_nobody_holds_the_lease(
    group: Group, prefix: str
) -> None:
    one, two = group.member(prefix), group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    assert won.in_sync is not None
    decided = won.in_sync.next(frozenset({2}), 5)
    assert entries(two.recover(won.in_sync, decided)) == entries(won)
    one.resign()
    after = two.recover(won.in_sync, decided)
    assert after.in_sync is not None and after.in_sync.lineage == decided.lineage
    again = two.recover(won.in_sync, won.in_sync.next(frozenset({1}), 5))
    assert again.in_sync == after.in_sync


def test_the_holder_leaves_to_a_successor_in_one_transaction(group: Group, prefix: str) -> None:
    one, two = group.member(prefix), group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    assert won.holder is not None
    named = one.name_successor(won.holder.epoch, 2, leave=False)
    assert (holder_of(named), named.successor) == (1, 2)
    left = one.name_successor(won.holder.epoch, 2, leave=True)
    assert (holder_of(left), left.successor, left.revision) == (None, 2, named.revision + 1)
    assert not one.renew()
    after = two.campaign(candidate(2), *asked(2, won.in_sync))
    assert after.holder is not None and after.holder.epoch > won.holder.epoch


def test_an_entry_without_a_lease_is_no_holder_and_can_be_deleted(
    group: Group, prefix: str
) -> None:
    one, two = group.member(prefix), group.member(prefix)
    held = one.campaign(candidate(1), *asked(1, None))
    assert held.holder is not None
    after = one.remove_unleased(held.holder.epoch)  # it is bound to a lease
    assert holder_of(after) == 1 and not after.unleased

    copy = {"member": 1, "address": "a:1", "haAddress": "a:2", "token": "token 1"}
    for entry in (copy, {"any": "thing"}):
        one._gateway.call("kv/txn", {"success": [_put(f"{prefix}/leader", entry)]})
        one._gateway.call("kv/txn", {"success": [_put(f"{prefix}/successor", {"member": 3})]})
        view = two.watch(0, 0)
        assert view.holder is None and not view.successor
        assert view.unleased
        assert two.remove_unleased(view.unleased - 1).unleased == view.unleased
        assert not two.remove_unleased(view.unleased).unleased
    assert holder_of(two.campaign(candidate(2), *asked(2, view.in_sync))) == 2


def test_a_former_holder_cannot_name_a_successor(group: Group, prefix: str) -> None:
    one, two = group.member(prefix), group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    assert won.holder is not None
    one.resign()
    two.campaign(candidate(2), *asked(2, won.in_sync))
    view = one.name_successor(won.holder.epoch, 1, leave=True)
    assert (holder_of(view), view.successor) == (2, 0)


def test_a_change_is_executed_at_most_once(group: Group, prefix: str) -> None:
    one = group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    assert won.holder is not None and won.in_sync is not None
    twice = change(won, {1, 2}, 9)
    assert entries(one.change_in_sync(twice)) == entries(one.change_in_sync(twice))


def test_a_lease_that_is_not_renewed_expires_and_a_watch_notices(group: Group, prefix: str) -> None:
    one, two = group.member(prefix), group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    view = two.watch(won.revision, PATIENCE_S)
    assert view.holder is None and view.revision > won.revision
    assert not one.renew()
    one.resign()  # it is gone already, which is no error


def test_a_renewed_lease_stays(group: Group, prefix: str) -> None:
    one = group.member(prefix)
    won = one.campaign(candidate(1), *asked(1, None))
    for _ in range(TTL_S + 1):
        assert one.renew()
        assert entries(one.watch(won.revision, 0.8)) == entries(won)


def test_a_watch_returns_at_once_if_there_was_a_change(group: Group, prefix: str) -> None:
    one, two = group.member(prefix), group.member(prefix)
    before = two.watch(0, 0)
    one.campaign(candidate(1), *asked(1, None))
    assert holder_of(two.watch(before.revision, PATIENCE_S)) == 1


def test_closing_ends_a_watch(group: Group, prefix: str) -> None:
    one = group.member(prefix)
    revision = one.watch(0, 0).revision
    watching = threading.Thread(target=one.watch, args=(revision, 10 * PATIENCE_S))
    watching.start()
    watching.join(0.3)
    assert watching.is_alive()
    one.close()
    watching.join(PATIENCE_S)
    assert not watching.is_alive()


def test_groups_do_not_see_each_other(group: Group, prefix: str) -> None:
    one, two = group.member(f"{prefix}-a"), group.member(f"{prefix}-ab")
    one.campaign(candidate(1), *asked(1, None))
    assert holder_of(two.campaign(candidate(2), *asked(2, None))) == 2


def test_a_number_is_bound_to_the_identity_that_claims_it_first(group: Group, prefix: str) -> None:
    one, two = group.member(prefix), group.member(prefix)
    assert one.claim(1, "one") == "one"
    assert two.claim(1, "two") == "one"
    assert one.claim(1, "one") == "one"
    assert two.claim(2, "two") == "two"
    assert one.watch(0, 0).holder is None


# -- what only a fake server does on demand ------------------------------------------------------


def test_another_endpoint_is_used_if_one_is_cut_off(fake: FakeEtcd) -> None:
    first, second = fake.endpoint(), fake.endpoint()
    one = Group(first.url, second.url).member()
    one.campaign(candidate(1), *asked(1, None))
    first.cut = True
    assert one.renew() and holder_of(one.watch(0, 0)) == 1
    second.cut = True
    with pytest.raises(NotReachedError, match=r"^etcd does not answer: http.*; http"):
        one.renew()
    first.cut = False
    assert one.renew()


def test_a_campaign_with_a_lost_answer_may_have_won(fake: FakeEtcd) -> None:
    endpoint = fake.endpoint()
    other = fake.endpoint()
    one = Group(endpoint.url).member()
    before = one.watch(0, 0)

    executes = fake._kv_txn

    def mute_then_execute(body: dict[str, str]) -> tuple[int, dict[str, str]]:
        endpoint.mute = True
        return executes(body)

    fake._kv_txn = mute_then_execute  # type: ignore[method-assign]
    with pytest.raises(NotReachedError):
        one.campaign(candidate(1), *asked(1, before.in_sync))
    endpoint.mute = False
    view = Group(other.url).member().watch(0, 0)
    assert view.holder is not None and view.holder.token == "token 1"
    assert one.renew()


def test_an_expired_token_is_renewed(fake: FakeEtcd) -> None:
    one = Group(fake.endpoint().url).member(user="firetrail", password="secret")
    one.campaign(candidate(1), *asked(1, None))
    fake.valid_token = "another"
    assert one.renew()


def test_wrong_credentials_are_refused(fake: FakeEtcd) -> None:
    one = Group(fake.endpoint().url).member(user="firetrail", password="wrong")
    with pytest.raises(
        ElectionError, match="etcd refuses the request: etcdserver: authentication failed"
    ):
        one.watch(0, 0)


def test_a_shorter_lease_than_requested_is_refused(fake: FakeEtcd) -> None:
    fake.ttl_granted = TTL_S - 1
    with pytest.raises(ElectionError, match="etcd grants leases of 1 seconds, not 2"):
        Group(fake.endpoint().url).member().campaign(candidate(1), *asked(1, None))


def test_a_lease_that_expires_during_the_campaign_loses_it(fake: FakeEtcd) -> None:
    fake.ttl_granted = TTL_S
    one = Group(fake.endpoint().url).member()
    executes = fake._kv_txn

    def expire_first(body: dict[str, str]) -> tuple[int, dict[str, str]]:
        fake.end_lease(max(fake.leases))
        return executes(body)

    fake._kv_txn = expire_first  # type: ignore[method-assign]
    assert holder_of(one.campaign(candidate(1), *asked(1, None))) is None


def test_entries_of_others_are_refused(fake: FakeEtcd) -> None:
    one = Group(fake.endpoint().url).member("/x")
    one.campaign(candidate(1), *asked(1, None))
    for entry in fake.keys.values():
        entry["value"] = "e30="  # {}
    with pytest.raises(ElectionError, match="an entry under /x/ that no member of the group wrote"):
        one.watch(0, 0)


def test_a_key_of_others_that_is_no_text_is_refused(group: Group) -> None:
    one = group.member("/binary")
    put = {"key": b64encode(b"/binary/\xff").decode(), "value": "e30="}
    one._gateway.call("kv/txn", {"success": [{"request_put": put}]})
    with pytest.raises(ElectionError, match="an entry under /binary/ that no member"):
        one.watch(0, 0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a certificate for 127.0.0.1 and its key, which signs itself."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not on this machine")
    path = str(tmp_path_factory.mktemp("tls") / "both.pem")
    subject = ["-subj", "/CN=etcd", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject]
    subprocess.run([*command, "-keyout", path, "-out", f"{path}.crt"], check=True, stderr=DEVNULL)
    with open(path, "a") as both:
        both.write(Path(f"{path}.crt").read_text())
    return path


def test_servers_and_clients_show_certificates(fake: FakeEtcd, certificate: str) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    tls.load_cert_chain(certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    group = Group(fake.endpoint(tls).url)
    member = group.member(ca_file=certificate, cert_file=certificate)
    assert holder_of(member.campaign(candidate(1), *asked(1, None))) == 1
    with pytest.raises(NotReachedError, match="CERTIFICATE_VERIFY_FAILED"):
        group.member().watch(0, 0)
    with pytest.raises(NotReachedError):
        group.member(ca_file=certificate).watch(0, 0)


@pytest.mark.parametrize("endpoint", ["", "host", "ftp://host:1", "http://:2379", "host:x"])
def test_an_endpoint_must_be_an_address(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT, http://HOST:PORT or https://"):
        Group(endpoint).member()


def test_certificates_must_be_readable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"etcd_ca_file.*it cannot be loaded"):
        Group("https://h:1").member(ca_file=str(tmp_path / "none"))
    with pytest.raises(
        ConfigError, match=r"etcd_cert_file.*it must hold a certificate and its key"
    ):
        Group("https://h:1").member(cert_file=str(tmp_path / "none"))
