"""The guard: its texts, white lists, and what it makes of senders."""

from dataclasses import replace
from typing import Any

import pytest
from tests.access.actors import SECRET, Peer, Users, credentials, guard_of, signed
from tests.remoting.loopbacks import echo, serving

from firetrail.access.guard import AccessPolicy, Guard
from firetrail.auth.caller import Caller
from firetrail.auth.policies import (
    GRANTS_MAX,
    Decision,
    Policy,
    PolicyEntry,
    User,
    UserStatus,
    UserType,
    parse_source,
)
from firetrail.auth.resources import Action, Resource
from firetrail.errors import ConfigError, RequestError
from firetrail.remoting.servers.addresses import source_of
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

ALICE = User("alice", credentials("alice").secret_key)
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


PEER: Any = Peer("[::1]:5000")


def asked(guard: Guard, request: RemotingCommand) -> str | None:
    answer = guard(PEER, request)
    if answer is None:
        return None
    assert answer.code == 16
    return answer.remark


def test_refusals_have_rocketmqs_texts() -> None:
    guard = guard_of(ALICE, User("bob", "bobs password", status=UserStatus.DISABLED))
    route = {"topic": "T1"}
    assert asked(guard, RemotingCommand(ROUTE, route)) == "username cannot be null."
    assert asked(guard, RemotingCommand(ROUTE, {"AccessKey": ""})) == "username cannot be null."
    assert asked(guard, signed(ROUTE, route, by="eve")) == "User:eve is not found."
    assert asked(guard, signed(ROUTE, route, by="bob")) == "User:bob is disabled."
    forged = RemotingCommand(ROUTE, signed(ROUTE, route, by="alice").fields, b"x")
    assert asked(guard, forged) == "check signature failed."
    assert asked(guard, signed(ROUTE, route, by="alice")) == (
        "User:alice has no permission to access Topic:T1 from ::1, no matched policies."
        " The request needs Pub or Sub or Get on Topic:T1."
    )


def test_names_of_strangers_cannot_forge_log_lines() -> None:
    guard = guard_of(ALICE)
    remark = asked(guard, RemotingCommand(ROUTE, {"AccessKey": "x\nERROR " + "y" * 1000}))
    assert remark is not None
    assert "\n" not in remark
    assert len(remark) < 120


def test_without_authorization_a_signature_is_enough_except_for_super_users() -> None:
    guard = guard_of(ALICE, policy=AccessPolicy(authorization=False))
    assert asked(guard, signed(ROUTE, {"topic": "T1"}, by="alice")) is None
    assert asked(guard, signed(RequestCode.UPDATE_BROKER_CONFIG, by="alice")) is None
    assert asked(guard, RemotingCommand(ROUTE, {"topic": "T1"})) == "username cannot be null."
    assert asked(guard, signed(3001, {"username": "x"}, by="alice")) == (
        "AUTH_CREATE_USER: User:alice is not a super user"
    )


def test_white_lists_skip_their_check_only() -> None:
    words = frozenset({str(int(ROUTE)), "apache.rocketmq.v2.QueryRouteRequest"})
    unsigned = RemotingCommand(ROUTE, {"topic": "T1"})
    half = guard_of(ALICE, policy=AccessPolicy(unauthenticated=words))
    assert asked(half, unsigned) == "username cannot be null."  # the permission is still checked
    other = guard_of(ALICE, policy=AccessPolicy(unauthorized=words))
    assert asked(other, signed(ROUTE, {"topic": "T1"}, by="alice")) is None
    assert asked(other, RemotingCommand(ROUTE, {"topic": "T1"})) == "username cannot be null."
    both = guard_of(ALICE, policy=AccessPolicy(unauthenticated=words, unauthorized=words))
    assert asked(both, unsigned) is None


def test_a_signature_counts_on_the_white_list() -> None:
    root = User("root", credentials("root").secret_key, UserType.SUPER)
    guard = guard_of(root, policy=AccessPolicy(unauthenticated=frozenset({str(int(ROUTE))})))
    route = {"topic": "T1"}
    assert asked(guard, signed(ROUTE, route, by="root")) is None
    forged = RemotingCommand(ROUTE, signed(ROUTE, route, by="root").fields, b"x")
    assert asked(guard, forged) == "username cannot be null."
    by_certificate: Any = Peer(certificate_user="root")
    assert guard(by_certificate, RemotingCommand(ROUTE, route)) is None


async def test_only_authenticated_requests_prove_a_connection() -> None:
    words = frozenset({str(int(ROUTE))})
    guard = guard_of(ALICE, policy=AccessPolicy(unauthenticated=words, unauthorized=words))
    async with serving(guard=guard, handlers={ROUTE: echo}) as loopback:
        assert (await loopback.ask(ROUTE)).code == 0
        (connection,) = loopback.server.connections
        assert not connection.is_proven
        signature = signed(ROUTE, {"topic": "T1"}, by="alice").fields
        forged = {**signature, "topic": "T2"}
        assert (await loopback.ask(ROUTE, fields=forged)).code == 0
        assert not connection.is_proven
        assert (await loopback.ask(ROUTE, fields=signature)).code == 0
        assert connection.is_proven
    guard = guard_of(ALICE, policy=AccessPolicy(unauthorized=words))
    async with serving(guard=guard, handlers={ROUTE: echo}) as loopback:
        assert (await loopback.ask(ROUTE)).code == 16
        (connection,) = loopback.server.connections
        assert not connection.is_proven
        assert (await loopback.ask(ROUTE, fields=signature)).code == 0
        assert connection.is_proven


@pytest.mark.parametrize("code", ["25", "3001", "103", "17", "4711", "26"])
def test_requests_of_administrators_cannot_be_on_a_white_list(code: str) -> None:
    for policy in (
        AccessPolicy(unauthenticated=frozenset({code})),
        AccessPolicy(unauthorized=frozenset({code})),
    ):
        with pytest.raises(ConfigError, match=f"Whitelist = {code}: a request of administrators"):
            guard_of(policy=policy)


def test_an_unforeseen_error_lets_nothing_through(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def find(self, name: str) -> User | None:
            raise KeyError(name)

    guard = Guard(Broken(), AccessPolicy(), SYSTEM.clock)
    request = signed(ROUTE, {"topic": "T1"}, by="alice")
    answer = guard(PEER, request)
    assert answer is not None
    assert answer.code == 1
    assert request.caller is None


def test_a_malformed_body_is_refused() -> None:
    guard = guard_of(ALICE)
    answer = guard(PEER, signed(RequestCode.HEART_BEAT, {}, b"{", by="alice"))
    assert answer is not None
    assert answer.code == 1


def test_a_super_user_needs_no_policy() -> None:
    root = User("root", credentials("root").secret_key, UserType.SUPER)
    request = signed(RequestCode.UPDATE_BROKER_CONFIG)
    assert asked(guard_of(root), request) is None
    assert request.caller is not None
    assert request.caller.user is root
    assert request.caller.source == "::1"
    assert SECRET not in repr(request.caller)


def test_the_address_of_a_peer() -> None:
    assert source_of("10.0.0.1:80") == "10.0.0.1"
    assert source_of("[fe80::1]:80") == "fe80::1"
    assert source_of("") == ""


def test_a_certificate_takes_the_place_of_a_signature_but_not_of_a_permission() -> None:
    guard = guard_of(ALICE, User("root", "roots password", UserType.SUPER))
    request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
    peers: list[Any] = [Peer(certificate_user=name) for name in ("alice", "root", "eve")]
    by_alice, by_root, by_eve = peers
    assert guard(by_alice, request) is None
    assert request.caller is not None
    assert request.caller.user_name == "alice"
    assert by_alice.caller is request.caller
    route = RemotingCommand(ROUTE, {"topic": "T1"})
    refusal = guard(by_alice, route)
    assert refusal is not None
    assert "User:alice has no permission" in str(refusal.remark)
    assert guard(by_root, route) is None
    refusal = guard(by_eve, route)
    assert refusal is not None
    assert refusal.remark == "User:eve is not found."


def test_a_signature_counts_before_a_certificate() -> None:
    guard = guard_of(ALICE, User("root", "roots password", UserType.SUPER))
    peer: Any = Peer(certificate_user="root")
    request = signed(RequestCode.GET_BROKER_CLUSTER_INFO, {}, by="alice")
    assert guard(peer, request) is None
    assert request.caller is not None
    assert request.caller.user_name == "alice"
    forged = signed(RequestCode.GET_BROKER_CLUSTER_INFO, {}, by="eve")
    assert guard(peer, forged) is not None


def test_the_caller_of_a_connection_is_kept_only_for_the_same_user() -> None:
    """Every request is verified nevertheless, and a changed user is a new object."""
    users = Users(ALICE, User("root", credentials("root").secret_key, UserType.SUPER))
    whitelist = AccessPolicy(unauthenticated=frozenset({str(int(ROUTE))}))
    guard = Guard(users, whitelist, SYSTEM.clock)
    connection: Any = Peer()

    def caller_of(request: RemotingCommand) -> Caller:
        assert guard(connection, request) is None
        assert request.caller is not None
        return request.caller

    info = RequestCode.GET_BROKER_CLUSTER_INFO
    first = caller_of(signed(info, {}, by="alice"))
    assert caller_of(signed(info, {}, by="alice")) is first
    assert caller_of(signed(info, {}, by="root")).user_name == "root"
    unsigned = RemotingCommand(ROUTE, {"topic": "T1"})
    assert guard(connection, unsigned) is not None  # nobody has a permission
    assert unsigned.caller is not None
    assert unsigned.caller.user is None
    forged = signed(info, {}, by="root")
    forged.fields = {**forged.fields, "more": "x"}
    assert guard(connection, forged) is not None
    assert forged.caller is None
    users.put(replace(ALICE, policies=(Policy(), Policy())))
    assert caller_of(signed(info, {}, by="alice")).user is users.find("alice")


SEND, SEND_ALL = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
MANY_QUEUES = "INNER_MULTI_DISPATCH\1U1\2"


@pytest.mark.parametrize(
    ("code", "names", "body", "source"),
    [
        (SEND, {"b": "U1"}, b"", "10.0.0.5"),
        (SEND, {"b": "T1"}, b"", "192.168.0.5"),
        (SEND, {"b": "T1", "i": MANY_QUEUES}, b"", "10.0.0.5"),
        (SEND, {}, b"", "10.0.0.5"),
        (SEND_ALL, {"b": "T1", "m": "true"}, MANY_QUEUES.encode(), "10.0.0.5"),
        (SEND, {"b": "T1", "m": "true"}, MANY_QUEUES.encode(), "10.0.0.5"),
        (SEND_ALL, {"b": "T1", "i": MANY_QUEUES}, b"", "10.0.0.5"),
        (SEND_ALL, {"b": "T1", "i": MANY_QUEUES, "m": "true"}, b"", "10.0.0.5"),
        (RequestCode.PULL_MESSAGE, {"topic": "T1", "consumerGroup": "T1"}, b"", "10.0.0.5"),
    ],
)
def test_a_kept_permission_allows_nothing_else(
    code: int, names: dict[str, str], body: bytes, source: str
) -> None:
    entry = PolicyEntry(
        Resource.parse("Topic:T*"),
        frozenset({Action.PUB}),
        Decision.ALLOW,
        (parse_source("10.0.0.0/8"),),
    )
    alice = replace(ALICE, policies=(Policy([entry]), Policy()))
    guard = guard_of(alice)
    inside: Any = Peer("10.0.0.5:4711")
    for allowed in (SEND, SEND_ALL):
        for _ in range(2):
            assert guard(inside, signed(allowed, {"b": "T1"}, by="alice")) is None
    assert len(alice.grants) == 2
    peer: Any = Peer(f"{source}:4711")
    refused = guard(peer, signed(code, names, body, by="alice"))
    assert refused is not None
    assert refused.code == 16


def test_a_kept_permission_ends_with_the_policies() -> None:
    entry = PolicyEntry(Resource.parse("Topic:T1"), frozenset({Action.PUB}), Decision.ALLOW)
    alice = replace(ALICE, policies=(Policy([entry]), Policy()))
    send = signed(SEND, {"b": "T1"}, by="alice")
    assert asked(guard_of(alice), send) is None
    assert asked(guard_of(alice), send) is None
    assert asked(guard_of(replace(alice, policies=(Policy(), Policy()))), send) is not None


def test_few_permissions_are_kept() -> None:
    entry = PolicyEntry(Resource.parse("*"), frozenset({Action.ALL}), Decision.ALLOW)
    alice = replace(ALICE, policies=(Policy([entry]), Policy()))
    guard = guard_of(alice)
    for number in range(GRANTS_MAX + 1):
        assert asked(guard, signed(SEND, {"b": f"T{number}"}, by="alice")) is None
    assert asked(guard, signed(SEND, {"b": "T" * 256}, by="alice")) is None
    assert len(alice.grants) == 1


# -- trusted addresses -------------------------------------------------------------------------

POP = {"topic": "T1", "consumerGroup": "G"}
TRUSTED = {
    "nobody": lambda: RemotingCommand(RequestCode.POP_MESSAGE, POP),
    "a stranger": lambda: signed(RequestCode.POP_MESSAGE, POP, by="eve"),
    "a user": lambda: signed(RequestCode.POP_MESSAGE, POP, by="alice"),
}


@pytest.mark.parametrize("sender", TRUSTED)
@pytest.mark.parametrize("policy", [AccessPolicy(), AccessPolicy(authorization=False)])
def test_a_waiting_request_loses_the_trust_of_its_address(
    sender: str, policy: AccessPolicy
) -> None:
    white = {"::1"}
    guard = Guard(
        Users(ALICE), replace(policy, trusts=lambda source, name: source in white), SYSTEM.clock
    )
    peer: Any = Peer("[::1]:5000")
    request = TRUSTED[sender]()
    assert guard(peer, request) is None
    guard.check_again(peer, request)
    assert request.caller is not None
    assert guard.is_present(request.caller)
    white.clear()
    again = guard(peer, TRUSTED[sender]())
    if again is None:  # the signature of a user is enough
        assert (sender, policy.authorization) == ("a user", False)
        assert guard.is_present(request.caller)
        guard.check_again(peer, request)
        return
    assert not guard.is_present(request.caller)
    with pytest.raises(RequestError) as refused:
        guard.check_again(peer, request)
    assert refused.value.code == again.code == 16


def test_a_user_at_a_former_trusted_address_keeps_its_permissions() -> None:
    white = {"::1"}
    entry = PolicyEntry(Resource.parse("Topic:T1"), frozenset({Action.PUB}), Decision.ALLOW)
    guard = Guard(
        Users(replace(ALICE, policies=(Policy([entry]), Policy()))),
        AccessPolicy(trusts=lambda source, name: source in white and name == "alice"),
        SYSTEM.clock,
    )
    peer: Any = Peer("[::1]:5000")
    allowed = signed(ROUTE, {"topic": "T1"}, by="alice")
    other = signed(ROUTE, {"topic": "T2"}, by="alice")
    for request in (allowed, other):
        assert guard(peer, request) is None
    white.clear()
    guard.check_again(peer, allowed)
    with pytest.raises(RequestError):
        guard.check_again(peer, other)
    assert guard(peer, signed(ROUTE, {"topic": "T1"}, by="alice")) is None
