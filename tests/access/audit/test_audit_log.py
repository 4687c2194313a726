"""The audit log: its events, its limits, its files, and what happens if it cannot be written."""

import errno
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.access.actors import SECRET, Peer, acl, credentials, signed
from tests.helpers import FaultyFiles, ManualClock, eventually

from firetrail.access.audit import audit_trail
from firetrail.access.audit.audit_details import _DETAILED
from firetrail.access.audit.audit_log import AuditLog
from firetrail.access.implied_permissions import PUB, SUB, topic_need
from firetrail.access.rules import RULES
from firetrail.access.user_bodies import UserInfo
from firetrail.auth.caller import Caller
from firetrail.auth.policies import User
from firetrail.remoting.messages.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBody,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigList,
)
from firetrail.remoting.messages.requests import REQUESTS
from firetrail.remoting.messages.typed_header import NoHeader
from firetrail.remoting.wire.codes import RequestCode as Code
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.audit_settings import AuditSettings
from firetrail.system import SYSTEM, System

ALICE = User("alice", credentials("alice").secret_key)


class StoppedClock(ManualClock):
    """A clock that nothing makes run."""

    def monotonic(self) -> float:
        return self._pushed_s


def answered(
    log: AuditLog, request: RemotingCommand, code: int = 0, remark: str = "", peer: Any = None
) -> Future[None] | None:
    connection: Any = peer or Peer()
    return log.answered(connection, request, request.answer(code, remark))


def denied_call(log: AuditLog, reason: str, peer: str) -> None:
    """Record a denied call of a stranger."""
    log.denied_call(
        "SendMessage", reason, peer, None, code=40100, is_encrypted=False, claimed="eve"
    )


def asked(code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
    request = signed(code, fields, body, by="alice")
    request.caller = Caller(ALICE, "10.0.0.5", is_checked=True)
    return request


def events(path: Path) -> list[dict[str, Any]]:
    """Return all events without their time, the oldest first."""
    files = sorted(path.parent.glob(f"{path.name}*"), key=lambda each: (len(each.name), each.name))
    text = "".join(each.read_text(encoding="utf-8") for each in reversed(files))
    found = [json.loads(line) for line in text.split("\n") if line]
    for event in found:
        assert event.pop("time").endswith("Z")
    return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    log = AuditLog(tmp_path, AuditSettings(), SYSTEM)
    log.start()
    yield log
    log.stop()


def test_administration_has_its_user_names_and_outcome(log: AuditLog) -> None:
    log.login("alice", "signature", "10.0.0.5:4711", is_encrypted=True)
    answered(log, asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
    answered(log, asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "a\nb"}), 17, "no such topic")
    body = f"brokerPermission=4\ninitAuthenticationUser={SECRET}\n".encode()
    answered(log, asked(Code.UPDATE_BROKER_CONFIG, {}, body))
    log.stop()
    who = {"user": "alice", "peer": "10.0.0.5:4711", "tls": True}
    admin = {"event": "administration", "outcome": "done", **who}
    delete = {"request": "DELETE_TOPIC_IN_BROKER"}
    assert events(log.path) == [
        {"event": "start"},
        {"event": "login", "method": "signature", **who},
        {**admin, **delete, "topic": "orders"},
        {
            **{**admin, "outcome": "failed", **delete, "topic": r"a\nb"},
            **{"code": 17, "reason": "no such topic"},
        },
        {
            **{**admin, "request": "UPDATE_BROKER_CONFIG"},
            "settings": ["brokerPermission", "initAuthenticationUser"],
        },
        {"event": "stop"},
    ]


def test_names_in_bodies_are_recorded(log: AuditLog) -> None:
    group = SubscriptionGroupConfig("g1")
    answered(log, asked(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group.encode()))
    topics = TopicConfigList([TopicConfig("t1"), TopicConfig("t2")])
    answered(log, asked(Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, topics.encode()))
    answered(log, asked(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g1"}))
    beat = HeartbeatData(
        "c", [], [ConsumerData("g1", subscription_data_set=[SubscriptionData("t1")])]
    )
    answered(log, asked(Code.HEART_BEAT, {}, beat.encode()), 16)
    lock = LockBody("g1", "c", [MessageQueue("t1", "b", 0)])
    answered(log, asked(Code.LOCK_BATCH_MQ, {}, lock.encode()), 16)
    log.stop()
    found = [_details(event) for event in events(log.path)[1:-1]]
    both = {"group": "g1", "topic": "t1"}
    assert found == [{"group": "g1"}, {"topics": ["t1", "t2"]}, {"group": "g1"}, both, both]


def test_changes_of_a_user_say_what_changes(log: AuditLog) -> None:
    bob = {"username": "bob"}
    for change in (
        UserInfo("bob", SECRET, "Normal", "enable"),
        UserInfo(user_type="Super"),
        UserInfo(user_status="disable"),
        UserInfo(password=SECRET),
    ):
        answered(log, asked(Code.AUTH_UPDATE_USER, bob, change.encode()))
    stranger = signed(Code.AUTH_UPDATE_USER, bob, UserInfo(user_type="Super").encode(), by="eve")
    answered(log, stranger, 16)
    log.stop()
    found = [_details(event) for event in events(log.path)[1:-1]]
    assert found == [
        {**bob, "user_type": "Normal", "user_status": "enable", "password_changed": True},
        {**bob, "user_type": "Super"},
        {**bob, "user_status": "disable"},
        {**bob, "password_changed": True},
    ]
    assert [_details(event) for event in events(log.strangers_path)] == [bob]
    assert SECRET not in log.path.read_text(encoding="utf-8")


def test_changes_of_policies_say_what_is_granted(log: AuditLog) -> None:
    given = acl("bob", "* All", sources=["10.0.0.0/8"])
    many = acl("bob", *(f"Topic:{'t' * 300} {'Pub,' * 20}Sub" for _ in range(100)))
    subject = {"subject": "User:bob"}
    for each in (given, many):
        answered(log, asked(Code.AUTH_UPDATE_ACL, subject, each.encode()))
    answered(log, asked(Code.AUTH_DELETE_ACL, {**subject, "resource": "*", "policyType": "Custom"}))
    log.stop()
    first, second, third = (_details(event) for event in events(log.path)[1:-1])
    entry = {"resource": "*", "actions": ["All"], "decision": "Allow", "sources": ["10.0.0.0/8"]}
    assert first == {**subject, "entries": [entry]}
    assert len(second["entries"]) == 32
    assert second["entries_unlisted"] == 68
    assert len(second["entries"][0]["resource"]) == 256
    assert len(second["entries"][0]["actions"]) == 8
    assert second["entries"][0]["actions_unlisted"] == 13
    assert third == {**subject, "resource": "*", "policyType": "Custom"}


def test_changes_of_accounts_of_acl_1_say_what_is_granted(log: AuditLog) -> None:
    words = {"accessKey": "bob", "admin": "true", "defaultTopicPerm": "PUB"}
    fields = {**words, "secretKey": SECRET, "topicPerms": "a=PUB,b=SUB"}
    answered(log, asked(Code.UPDATE_AND_CREATE_ACL_CONFIG, fields))
    white = {"globalWhiteAddrs": ",".join(f"10.0.0.{number}" for number in range(40))}
    answered(log, asked(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, white))
    log.stop()
    account, addresses = (_details(event) for event in events(log.path)[1:-1])
    assert account == {**words, "topicPerms": ["a=PUB", "b=SUB"], "password_changed": True}
    assert len(addresses["globalWhiteAddrs"]) == 32
    assert addresses["globalWhiteAddrs_unlisted"] == 8
    assert SECRET not in log.path.read_text(encoding="utf-8")


def _details(event: dict[str, Any]) -> dict[str, Any]:
    """Return what an event says about its request."""
    others = ("event", "outcome", "user", "claimed_user", "peer", "tls", "request")
    return {k: v for k, v in event.items() if k not in (*others, "code", "reason")}


def test_a_denied_request_says_why_and_who_it_claims_to_be_of(log: AuditLog) -> None:
    request = signed(Code.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "g"}, by="eve")
    answered(log, request, 16, "User:eve is not found.")
    log.denied_call(
        *("SendMessage", "username cannot be null.", "10.0.0.6:1", None),
        code=40100,
        is_encrypted=False,
        needs=[topic_need("orders", PUB), topic_need("a\u202eb", PUB), topic_need("orders", SUB)],
    )
    log.stop()
    assert events(log.strangers_path) == [
        {
            **{"event": "denied", "outcome": "denied", "claimed_user": "eve"},
            **{"peer": "10.0.0.5:4711", "tls": True, "request": "PULL_MESSAGE"},
            **{"topic": "orders", "group": "g"},
            **{"code": 16, "reason": "User:eve is not found."},
        },
        {
            **{"event": "denied", "outcome": "denied", "peer": "10.0.0.6:1", "tls": False},
            **{"request": "SendMessage", "topics": ["orders", r"a\u202eb"]},
            **{"code": 40100, "reason": "username cannot be null."},
        },
    ]


def test_a_certificate_of_an_unknown_user_says_who_it_claims_to_be_of(log: AuditLog) -> None:
    request = RemotingCommand(Code.PULL_MESSAGE, {"topic": "orders"})
    answered(log, request, 16, peer=Peer(certificate_user="mallory"))
    log.stop()
    (event,) = events(log.strangers_path)
    assert event["claimed_user"] == "mallory"
    assert "user" not in event


def test_messages_are_not_recorded_and_routine_once_per_connection(log: AuditLog) -> None:
    first, second = Peer(), Peer()
    for peer in (first, second, first):
        answered(log, asked(Code.SEND_MESSAGE_V2, {"b": "orders"}), peer=peer)
        answered(log, asked(Code.PULL_MESSAGE, {"topic": "orders"}), 19, peer=peer)
        answered(log, asked(Code.GET_ALL_CONSUMER_OFFSET, {}), peer=peer)
        answered(log, asked(Code.REGISTER_BROKER, {"clusterName": "c"}), peer=peer)
    log.stop()
    found = [event.get("request") for event in events(log.path)[1:-1]]
    assert found == ["GET_ALL_CONSUMER_OFFSET", "REGISTER_BROKER"] * 2


def test_only_the_owner_can_read_it_and_it_has_no_secret(log: AuditLog) -> None:
    answered(log, asked(Code.AUTH_CREATE_USER, {"username": "bob"}, SECRET.encode()))
    answered(log, signed(Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": SECRET}), 16)
    log.stop()
    paths = (log.path, log.strangers_path)
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert SECRET not in text
    signature = signed(Code.AUTH_CREATE_USER, {"username": "bob"}).fields["Signature"]
    assert signature not in text
    assert [len(events(path)) for path in paths] == [3, 1]


def test_a_change_can_be_waited_for(log: AuditLog) -> None:
    request = asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    written = answered(log, request)
    assert written is not None
    written.result(60)
    assert events(log.path)[-1]["topic"] == "orders"
    assert answered(log, request, 1) is None
    assert answered(log, request, 16) is None


def test_a_flood_of_denials_is_counted(tmp_path: Path) -> None:
    system = System(SYSTEM.files, StoppedClock())
    log = AuditLog(tmp_path, AuditSettings(audit_rate=5), system)
    log.start()
    request = signed(Code.SEND_MESSAGE_V2, {"b": "orders"}, by="eve")
    for _ in range(1000):
        answered(log, request, 16)
    for number in range(100):  # other addresses are not silenced by it, up to the rate of all
        answered(log, request, 16, peer=Peer(f"10.1.0.{number}:1"))
    answered(log, asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
    log.stop()
    found = events(log.strangers_path)
    lines = [event for event in found if "request" in event]
    assert len(lines) == 50  # of the rate 5, ten seconds at once
    assert len([event for event in lines if event["peer"].startswith("10.0.0.5:")]) == 20
    counted = {event["peer"]: event["unlisted"] for event in found if "unlisted" in event}
    assert counted["10.0.0.5"] == 980
    assert sum(counted.values()) + len(lines) == 1100
    assert {event["event"] for event in found} == {"denied"}
    assert [event["event"] for event in events(log.path)] == ["start", "administration", "stop"]


def test_strangers_displace_nothing_of_users(tmp_path: Path) -> None:
    settings = AuditSettings(audit_file_bytes=64 << 10, audit_files=2, audit_rate=100)
    log = AuditLog(tmp_path, settings, System(SYSTEM.files, StoppedClock()))
    log.start()
    answered(log, asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
    stranger = signed(Code.UPDATE_AND_CREATE_TOPIC, {"topic": "t" * 255}, by="e" * 64)
    for number in range(2_000):  # those with code 1 were refused before their user was looked up
        peer = Peer(f"10.0.{number % 200}.1:1")
        answered(log, stranger, 16 if number % 2 else 1, "no" * 100, peer=peer)
        denied_call(log, "no" * 100, peer.peer)
    peer = Peer("10.0.0.1:1")  # also an address of strangers
    answered(log, asked(Code.SEND_MESSAGE_V2, {"b": "orders"}), 16, peer=peer)
    log.stop()
    assert [(event["event"], event.get("user")) for event in events(log.path)] == [
        *(("start", None), ("administration", "alice"), ("denied", "alice"), ("stop", None))
    ]
    names = sorted(path.name for path in log.path.parent.iterdir())
    assert names == ["audit.log", "strangers.log", "strangers.log.1"]
    assert {event["event"] for event in events(log.strangers_path)} == {"denied"}


def test_a_user_cannot_fill_the_log_with_denied_requests(tmp_path: Path) -> None:
    clock = StoppedClock()
    log = AuditLog(tmp_path, AuditSettings(audit_rate=100), System(SYSTEM.files, clock))
    log.start()
    request = asked(Code.SEND_MESSAGE_V2, {"b": "orders"})
    for number in range(500):  # the address does not matter
        answered(log, request, 16, peer=Peer(f"10.1.0.{number % 250}:1"))
    bob = Caller(User("bob", "bobs password"), "10.0.0.5", is_checked=True)
    log.denied_call("SendMessage", "", "10.1.0.1:1", bob, code=40100, is_encrypted=False)
    clock.advance(60_000)
    for _ in range(100):
        answered(log, request, 16)
    log.stop()
    denied = [event for event in events(log.path) if event["event"] == "denied"]
    lines = [event["user"] for event in denied if "request" in event]
    assert (lines.count("alice"), lines.count("bob")) == (20 + 6, 1)
    counts = [event for event in denied if "request" not in event]
    assert {event["user"] for event in counts} == {"alice"}
    assert sum(event["unlisted"] for event in counts) == 600 - 26


def refused(log: AuditLog, topic: str, source: str = "10.0.0.5") -> None:
    """Refuse a request of alice, with the reason that a guard gives."""
    request = asked(Code.SEND_MESSAGE_V2, {"b": topic})
    wanted = topic_need(topic, PUB)
    request.caller = Caller(ALICE, source, is_checked=True)
    answered(log, request, 16, ALICE.denial(wanted, source, "no matched policies."))


def test_repeated_denials_do_not_hide_the_first_one_for_another_resource(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, AuditSettings(), System(SYSTEM.files, StoppedClock()))
    log.start()
    for number in range(250):
        refused(log, "noise", f"10.1.0.{number}")
    for topic in ("secret1", "secret2", "secret1"):
        refused(log, topic)
    caller = Caller(ALICE, "10.0.0.5", is_checked=True)
    for group in ("g1", "g2", "g1"):
        log.denied_call(
            *("Heartbeat", f"Group:{group}", "10.0.0.5:1", caller), code=40100, is_encrypted=False
        )
    log.stop()
    denied = [event for event in events(log.path) if event["event"] == "denied"]
    topics = [event["topic"] for event in denied if "topic" in event]
    assert topics == ["noise"] * 20 + ["secret1", "secret2"]
    calls = [event["reason"] for event in denied if event.get("request") == "Heartbeat"]
    assert calls == ["Group:g1", "Group:g2"]
    counts = [event for event in denied if "unlisted" in event]
    assert sum(event["unlisted"] for event in counts) == 230 + 1 + 1
    assert not any("unlisted_new" in event for event in counts)


def test_invented_names_do_not_fill_the_log(tmp_path: Path) -> None:
    clock = StoppedClock()
    log = AuditLog(tmp_path, AuditSettings(audit_rate=1000), System(SYSTEM.files, clock))
    log.start()
    for hour in range(2):
        for number in range(1_000):
            refused(log, f"invented-{number}")
        refused(log, "invented-0")
        clock.advance((hour + 1) * 3_600_000)
    log.stop()
    denied = [event for event in events(log.path) if event["event"] == "denied"]
    counts = [event for event in denied if "unlisted" in event]
    assert len(denied) - len(counts) == 2 * audit_trail.FIRSTS_MAX
    assert sum(event["unlisted"] for event in counts) == 2 * 901
    assert sum(event["unlisted_new"] for event in counts) == 2 * 900


def test_the_number_of_addresses_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_trail, "SENDERS_MAX", 3)
    log = AuditLog(tmp_path, AuditSettings(audit_rate=1), System(SYSTEM.files, StoppedClock()))
    log.start()
    for number in range(200):
        denied_call(log, "", f"10.0.{number}.1:1")
    log.stop()
    counts = [event for event in events(log.strangers_path) if "unlisted" in event]
    assert len(counts) == 4
    assert sum(event["unlisted"] for event in counts) == 190
    assert counts[-1]["peer"] == "others"


def test_files_are_rotated_and_their_number_is_bounded(tmp_path: Path) -> None:
    settings = AuditSettings(audit_file_bytes=64 << 10, audit_files=3, audit_rate=10_000)
    log = AuditLog(tmp_path, settings, SYSTEM)
    log.start()
    for number in range(2_000):
        fields = {"topic": f"t{number}", "brokerName": "b" * 200}
        answered(log, asked(Code.DELETE_TOPIC_IN_BROKER, fields))
    log.stop()
    files = sorted(log.path.parent.iterdir())
    assert [each.name for each in files] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(each.stat().st_size <= 64 << 10 for each in files)
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in files)
    kept = [int(event["topic"][1:]) for event in events(log.path) if "topic" in event]
    assert kept == list(range(kept[0], 2_000))


def test_a_file_that_others_can_read_becomes_private(tmp_path: Path) -> None:
    for _ in range(2):
        log = AuditLog(tmp_path, AuditSettings(), SYSTEM)
        log.start()
        log.stop()
        assert log.path.stat().st_mode & 0o777 == 0o600
        log.path.chmod(0o644)


def test_a_restart_continues_the_file(tmp_path: Path) -> None:
    for _ in range(2):
        log = AuditLog(tmp_path, AuditSettings(), SYSTEM)
        log.start()
        log.stop()
    assert [event["event"] for event in events(log.path)] == ["start", "stop"] * 2


def test_a_full_disk_is_reported_and_what_it_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    log = AuditLog(tmp_path, AuditSettings(), System(files, SYSTEM.clock))
    log.start()
    eventually(lambda: log.path.exists() and log.path.stat().st_size > 0)
    files.fail("write", errno.ENOSPC, "audit.log")
    written = answered(log, asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
    assert written is not None
    written.result(60)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "audit.log cannot be written, and 1 event of it" in record.getMessage()
    files.heal()
    answered(log, asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "others"}))
    log.stop()
    assert [event["event"] for event in events(log.path)] == [
        *("start", "lost", "administration", "stop")
    ]
    assert events(log.path)[1]["unlisted"] == 1


def test_events_that_wait_for_a_slow_disk_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_trail, "QUEUED_MAX", 10)
    files = FaultyFiles()
    log = AuditLog(tmp_path, AuditSettings(audit_rate=1_000), System(files, SYSTEM.clock))
    with files.stalled("write", "audit.log") as reached:
        log.start()
        assert reached.wait(60)
        for number in range(30):
            answered(log, asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": f"t{number}"}))
    eventually(lambda: len(events(log.path)) >= 11)
    log.stop()
    found = events(log.path)
    assert [e["unlisted"] for e in found if e["event"] == "lost"] == [20]
    assert len([e for e in found if e["event"] == "administration"]) == 10


def test_the_thread_ends(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, AuditSettings(), SYSTEM)
    log.start()
    log.stop()
    log.stop()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"firetrail-audit", "firetrail-strangers"}


def test_every_request_with_its_subject_in_its_body_has_details() -> None:
    """Without a header, an event would say only that there was a request."""
    without_body = {
        *(code for code in RULES if Code(code).name.startswith("GET_")),
        Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.CLEAN_UNUSED_TOPIC,
        Code.DELETE_EXPIRED_COMMITLOG,
    }
    in_body = {code for code in RULES if REQUESTS[code].header is NoHeader} - without_body
    assert in_body <= _DETAILED.keys()
