"""Every request that broker and name server answer, with every role."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.access.actors import SECURE, Peer, credentials, guard_of, signed
from tests.broker.test_every_request import GOOD_BODIES

from firetrail.access.rules import RULES, ReceivedRequest, _checked
from firetrail.auth.policies import (
    Decision,
    Policy,
    PolicyEntry,
    User,
    UserStatus,
    UserType,
    parse_source,
)
from firetrail.auth.resources import Action, Requirement, Resource
from firetrail.broker.broker import Broker
from firetrail.errors import RequestError
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.system_topics import SYSTEM_TOPICS, is_internal
from firetrail.remoting.messages.requests import REQUESTS
from firetrail.remoting.messages.typed_header import _plan
from firetrail.remoting.wire.codes import PLAIN_CODES, USER_CODES
from firetrail.remoting.wire.command import RemotingCommand

FIELDS = {
    "topic": "T1",
    "b": "T1",
    "consumerGroup": "CG",
    "group": "CG",
    "groupName": "CG",
    "clusterName": "C1",
    "srcGroup": "SG",
    "destGroup": "CG",
    "filterGroups": "F1,F2",
    "compareGroup": "CG",
}
"""The names in the header of every request."""

SEND, CONSUME, READ = ["Topic:T1 Pub"], ["Group:CG Sub", "Topic:T1 Sub"], ["Topic:T1 Sub/Get"]
GET_BOTH = ["Topic:T1 Get", "Group:CG Get", "Group:CG Get", "Group:F1 Get", "Group:F2 Get"]
GET_BOTH += ["Group:CG Get"]
SIGNED: list[str] = []
SUPER = ["super"]
EXPECTED: dict[tuple[int, ...], list[str]] = {
    (10, 310, 320, 370, 37): SEND,
    (324, 325): [*SEND, "Topic:C1_REPLY_TOPIC Pub"],
    (11, 361, 200050, 200051, 200052, 200053, 200054): CONSUME,
    (200151, 400, 46): CONSUME,
    (34,): ["Group:CG Sub", "Group:CG Sub", "Topic:T1 Sub"],
    (41, 42): ["Group:CG Sub", "Group:CG Sub", "Topic:T1 Sub"],
    (200055, 14): ["Topic:T1 Sub/Get", "Group:CG Sub/Get"],
    (15,): ["Topic:T1 Sub/Update", "Group:CG Sub/Update"],
    (12, 29, 30, 31, 32, 33): READ,
    (35, 36): ["Group:CG Sub"],
    (38,): ["Group:CG Sub/Get"],
    (17,): ["Topic:T1 Create"],
    (18,): ["Topic:T2 Create"],
    (215,): ["Topic:T1 Delete"],
    (202, 300, 351): ["Topic:T1 Get"],
    (200, 225): ["Group:CG Create"],
    (207,): ["Group:CG Delete"],
    (203, 307, 343, 352): ["Group:CG Get"],
    (309,): ["Group:CG Update"],
    (208, 223, 303, 308, 321, 345): GET_BOTH,
    (222, 353, 401): ["Topic:T1 Update", "Group:CG Update"],
    (314,): ["Group:SG Get", "Group:CG Update", "Topic:T1 Update"],
    (21,): ["Topic:* List | Cluster:C1 Get"],
    (201,): ["Group:* List | Cluster:C1 Get"],
    (25, 306, 316, 329, 906, 31001, 31003, 31004, 31005, 31006): ["Cluster:C1 Update"],
    (26, 28, 204, 315, 317, 328, 43, 45, 402): ["Cluster:C1 Get"],
    (60, 61, 907, 1007, 2003, 31002): ["Cluster:C1 Get"],
    (305, 323): SIGNED,
    (105,): ["Topic:T1 Pub/Sub/Get"],
    (106, 901, 206, 224, 304, 311, 312, 313): SIGNED,
    (103, 104, 904, 322, 217, 100, 102, 205, 216, 318, 327): ["Cluster:C1 Update"],
    (101, 219, 319): ["Cluster:C1 Get"],
    (*USER_CODES, *PLAIN_CODES): SUPER,
}
"""What each request requires, by its code."""
NAMED = {"topic", "group", "consumerGroup", "filterGroups", "compareGroup"}
"""Fields that the rule for GET_BOTH asks for, although each request has only some of them."""
CODES = {code: needs for codes, needs in EXPECTED.items() for code in codes}


def request_of(code: int, *, by: str = "alice") -> RemotingCommand:
    body = GOOD_BODIES[code].encode(standard=True) if code in GOOD_BODIES else b""  # type: ignore[index]
    return signed(code, FIELDS, body, by=by)


def needs_of(code: int) -> list[Requirement]:
    return list(RULES[code].needs(ReceivedRequest(request_of(code), "C1")))


def text_of(need: Requirement) -> str:
    actions = "/".join(action for action in Action if action in need.actions)
    other = f" | {text_of(need.otherwise)}" if need.otherwise is not None else ""
    return f"{need.resource} {actions}{other}"


EVERYTHING = PolicyEntry(Resource.parse("*"), frozenset({Action.ALL}), Decision.ALLOW)


def user(*entries: PolicyEntry) -> User:
    return User("alice", credentials("alice").secret_key, policies=(Policy(entries), Policy()))


def entries_for(needs: list[Requirement], decision: Decision = Decision.ALLOW) -> list[PolicyEntry]:
    """Return entries with exactly one of the actions of each need."""
    found: dict[str, PolicyEntry] = {}
    for need in needs:
        action = next(action for action in Action if action in need.actions)
        known = found.get(need.resource)
        actions = frozenset({action}) | (known.actions if known is not None else frozenset())
        found[need.resource] = PolicyEntry(Resource.parse(need.resource), actions, decision)
    return list(found.values())


def is_refused(code: int, who: User, *, request: RemotingCommand | None = None) -> bool:
    """Whether a request of ``alice`` from 10.0.0.1 is refused."""
    asked = request or request_of(code)
    answer = guard_of(who)(Peer("10.0.0.1:5000"), asked)  # type: ignore[arg-type]
    assert answer is not None or asked.caller is not None
    assert answer is None or answer.code == 16
    return answer is not None


async def test_every_code_has_a_rule_and_an_expectation(tmp_path: Path) -> None:
    async with Broker.running(tmp_path, SECURE) as broker:
        of_broker, of_name_server = broker.answered_codes
        # Either the users of ACL 2.0 or the accounts of ACL 1.0 exist, never both.
        assert of_broker | of_name_server | set(PLAIN_CODES) == set(RULES) == set(CODES)


class NotingFields(dict[str, str]):
    """Fields of a request that note which of them were asked for."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(fields)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("code", sorted(CODES))
class TestEveryCode:
    def test_the_rule_asks_for_fields_of_the_header(self, code: int) -> None:
        request = request_of(code)
        request.fields = fields = NotingFields(request.fields)
        list(RULES[code].needs(ReceivedRequest(request, "C1")))
        RULES[code].key(request)
        unknown = fields.asked - {field.wire for field in _plan(REQUESTS[code].header)}
        assert not unknown - (NAMED if CODES[code] is GET_BOTH else set())

    def test_the_rule_is_as_expected(self, code: int) -> None:
        if CODES[code] == SUPER:
            assert RULES[code].is_super
        else:
            assert [text_of(need) for need in needs_of(code)] == CODES[code]

    def test_the_rule_says_whether_it_finds_names_in_the_body(
        self, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request, read = request_of(code), []
        content = request.content

        def noting(command: RemotingCommand) -> bytes:
            read.append(command)
            return content

        monkeypatch.setattr(RemotingCommand, "content", property(noting))
        list(RULES[code].needs(ReceivedRequest(request, "C1")))
        assert RULES[code].in_body == bool(read)

    def test_unsigned_unknown_and_disabled_senders_are_refused(self, code: int) -> None:
        root = User("alice", credentials("alice").secret_key, UserType.SUPER)
        assert not is_refused(code, root)
        assert is_refused(code, root, request=RemotingCommand(code, FIELDS))
        assert is_refused(code, root, request=request_of(code, by="mallory"))
        assert is_refused(code, replace(root, status=UserStatus.DISABLED))
        assert is_refused(code, replace(root, password="another password"))
        named = request_of(code)
        changed = RemotingCommand(code, {**named.fields, "topic": "T9", "b": "T9"}, named.body)
        assert is_refused(code, root, request=changed)
        replaced = RemotingCommand(code, named.fields, b"another body")
        assert is_refused(code, root, request=replaced)

    def test_what_it_needs_is_sufficient_and_all_of_it_is_necessary(self, code: int) -> None:
        if CODES[code] == SUPER:
            assert is_refused(code, user(EVERYTHING))
            return
        needs = needs_of(code)
        entries = entries_for(needs)
        assert not is_refused(code, user(*entries))
        assert is_refused(code, user()) == bool(needs)
        for left_out in range(len(entries)):
            rest = [entry for at, entry in enumerate(entries) if at != left_out]
            assert is_refused(code, user(*rest))

    def test_deny_wins_over_a_wildcard_and_addresses_count(self, code: int) -> None:
        if CODES[code] == SUPER or not (needs := needs_of(code)):
            return
        assert not is_refused(code, user(EVERYTHING))
        denied = [
            replace(entry, actions=frozenset({Action.ALL}))
            for entry in entries_for(needs, Decision.DENY)
        ]
        assert is_refused(code, user(EVERYTHING, *denied))
        elsewhere = replace(EVERYTHING, sources=(parse_source("10.0.0.2"),))
        assert is_refused(code, user(elsewhere))
        assert not is_refused(
            code, user(replace(EVERYTHING, sources=(parse_source("10.0.0.0/8"),)))
        )


def test_a_table_without_a_row_for_a_request_is_refused() -> None:
    rows = {code: rule for code, rule in RULES.items() if code != 10}
    with pytest.raises(ValueError, match=r"these need a row here and in .*: SEND_MESSAGE$"):
        _checked(rows)
    with pytest.raises(ValueError, match=r"these need a row here and in .*: request 4711$"):
        _checked({**RULES, 4711: RULES[10]})


def test_a_code_without_a_rule_is_refused_unless_a_super_user_asks() -> None:
    assert is_refused(
        4711, user(PolicyEntry(Resource.parse("*"), frozenset({Action.ALL}), Decision.ALLOW))
    )
    assert is_refused(4711, user(), request=RemotingCommand(4711))
    assert not is_refused(4711, User("alice", credentials("alice").secret_key, UserType.SUPER))


@pytest.mark.parametrize(
    ("code", "changes", "needs"),
    [
        (310, {"b": "%RETRY%g"}, ["Group:g Sub"]),
        (310, {"b": "%DLQ%g"}, ["Topic:%DLQ%g Pub"]),
        (310, {"i": "A\x01b\x02INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"},
         ["Topic:T1 Pub", "Topic:%LMQ%a Pub", "Topic:%LMQ%b Pub"]),
        (310, {"i": "INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_DISPATCH\x01%LMQ%b,,T2,\x02"},
         ["Topic:T1 Pub", "Topic:%LMQ%b Pub", "Topic:T2 Pub"]),  # the last one counts
        (11, {"topic": "%RETRY%CG"}, ["Group:CG Sub"]),
        (11, {"topic": "%DLQ%g"}, ["Group:CG Sub", "Topic:%DLQ%g Sub | Group:g Sub"]),
        (105, {"topic": "%DLQ%g"}, ["Topic:%DLQ%g Sub/Get | Group:g Sub/Get"]),
        (200051, {"topic": "%RETRY%CG_T1"}, ["Group:CG Sub", "Topic:T1 Sub"]),
        (200051, {"topic": "%RETRY%CG+T1"}, ["Group:CG Sub", "Topic:T1 Sub"]),
        (12, {"topic": "%RETRY%g"}, ["Group:g Sub/Get"]),
        (105, {"topic": "%RETRY%g"}, ["Group:g Sub/Get"]),
        (307, {"jstackEnable": "true"}, ["Group:CG Update"]),
        (307, {"jstackEnable": "1"}, ["Group:CG Update"]),
        (25, {"clusterName": "mine"}, ["Cluster:C1 Update"]),
        (103, {"clusterName": "other"}, ["Cluster:C1 Update", "Cluster:other Update"]),
        (104, {"clusterName": "C1"}, ["Cluster:C1 Update"]),
    ],
)  # fmt: skip
def test_special_names_have_their_own_needs(
    code: int, changes: dict[str, str], needs: list[str]
) -> None:
    request = signed(code, FIELDS | changes, by="alice")
    found = list(RULES[code].needs(ReceivedRequest(request, "C1")))
    assert [text_of(need) for need in found] == needs


@pytest.mark.parametrize(
    ("item", "names_queues"),
    [
        (BatchItem(0, b"x", b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"), True),
        (BatchItem(0, b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02", b""), False),
        (BatchItem(0, b"x", b"MY_INNER_MULTI_DISPATCH\x01%LMQ%a\x02"), False),
    ],
)
def test_only_a_property_of_a_batch_names_light_queues(item: BatchItem, names_queues: bool) -> None:
    request = signed(320, FIELDS | {"m": "true"}, by="alice")
    request.body = encode_batch([item])
    found = [text_of(need) for need in RULES[320].needs(ReceivedRequest(request, "C1"))]
    assert (found == ["Topic:T1 Pub"]) is not names_queues


def test_retry_topics_of_other_groups_and_missing_names_are_refused() -> None:
    everything = user(EVERYTHING)
    other = signed(11, FIELDS | {"topic": "%RETRY%other"}, by="alice")
    assert is_refused(11, everything, request=other)
    assert is_refused(310, everything, request=signed(310, {}, by="alice"))
    assert is_refused(208, everything, request=signed(208, {}, by="alice"))


def test_the_refusal_of_a_missing_name_names_the_field() -> None:
    asked = ReceivedRequest(signed(11, {"topic": " "}, by="alice"), "C1")
    message = "the request lacks the field topic, which names the resource to check"
    with pytest.raises(RequestError, match=f": {message}$"):
        asked.name("topic")


def allowing(*resources: str) -> User:
    everything = frozenset({Action.ALL})
    return user(*(PolicyEntry(Resource.parse(e), everything, Decision.ALLOW) for e in resources))


@pytest.mark.parametrize(
    ("resource", "reads", "writes"),
    [
        ("Topic:%DLQ%shop-eu", True, True),
        ("Topic:%DLQ%shop*", True, True),
        ("Topic:%DLQ%*", True, True),
        ("Topic:%*", True, False),
        ("Topic:*", True, False),
        ("*", True, False),
        ("Group:shop-eu", True, False),
        ("Group:shop*", True, False),
        ("Topic:%DLQ%other*", False, False),
        ("Group:other", False, False),
    ],
)
def test_dead_letters_are_read_like_a_topic_or_by_their_group(
    resource: str, reads: bool, writes: bool
) -> None:
    dead = FIELDS | {"topic": "%DLQ%shop-eu", "b": "%DLQ%shop-eu", "consumerGroup": "CG"}
    who = allowing("Group:CG", resource)
    for code in (11, 12, 105):  # pull, query, route
        assert is_refused(code, who, request=signed(code, dead, by="alice")) != reads
    assert is_refused(310, who, request=signed(310, dead, by="alice")) != writes


def test_a_denied_topic_of_dead_letters_is_not_read_by_its_group() -> None:
    denied = PolicyEntry(Resource.parse("Topic:%DLQ%*"), frozenset({Action.SUB}), Decision.DENY)
    own = PolicyEntry(Resource.parse("Group:CG"), frozenset({Action.SUB}), Decision.ALLOW)
    request = signed(11, FIELDS | {"topic": "%DLQ%CG"}, by="alice")
    assert not is_refused(11, user(own), request=request)
    assert is_refused(11, user(own, denied), request=request)


def test_internal_topics_are_not_part_of_a_wildcard() -> None:
    everything = user(EVERYTHING)
    for topic in filter(is_internal, SYSTEM_TOPICS):
        assert is_refused(11, everything, request=signed(11, FIELDS | {"topic": topic}, by="alice"))
