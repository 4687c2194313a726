"""The decision: its order, its texts, and a comparison with a plain reading of the rules."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.auth.policies import (
    Decision,
    Policy,
    PolicyEntry,
    User,
    UserType,
    parse_address,
    parse_source,
    refusal,
    source_text,
)
from firetrail.auth.resources import (
    NAME_MAX,
    Action,
    MatchKind,
    Requirement,
    Resource,
    ResourceType,
    need,
)
from firetrail.errors import ConfigError

SECRET = "canary-of-the-secret"
NAMES = ["", "a", "ab", "abc", "b"]
ALLOW, DENY = Decision.ALLOW, Decision.DENY


def entry(
    resource: str, actions: str = "All", decision: Decision = ALLOW, *sources: str
) -> PolicyEntry:
    return PolicyEntry(
        Resource.parse(resource),
        frozenset(Action.parse(word) for word in actions.split(",")),
        decision,
        tuple(parse_source(text) for text in sources),
    )


def user(*custom: PolicyEntry, default: tuple[PolicyEntry, ...] = ()) -> User:
    return User("alice", SECRET, policies=(Policy(custom), Policy(default)))


def may(who: User, action: Action, name: str = "T", source: str = "10.0.0.1") -> bool:
    return refusal(who, need(ResourceType.TOPIC, name, action), source) is None


class TestResources:
    @pytest.mark.parametrize("text", ["*", "Topic:*", "Topic:ab*", "Group:g", "Cluster:c"])
    def test_the_text_of_a_resource_is_what_was_parsed(self, text: str) -> None:
        assert str(Resource.parse(text)) == text
        assert str(Resource.parse(f" {text.lower()} ")).lower() == text.lower()

    @pytest.mark.parametrize(
        "text", ["", "Topic", "Topic:", "Queue:a", "Topic:a*b", "Topic:a*b*", "Topic:a b", ":a"]
    )
    def test_other_texts_are_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="resource = "):
            Resource.parse(text)

    def test_unknown_actions_are_refused(self) -> None:
        assert Action.parse(" pub ") is Action.PUB
        with pytest.raises(ConfigError, match="action = 'Any': must be one of Pub, Sub"):
            Action.parse("Any")


class TestOrder:
    def test_a_super_user_may_do_everything(self) -> None:
        assert may(User("root", SECRET, UserType.SUPER), Action.DELETE)

    def test_nothing_is_allowed_without_an_entry(self) -> None:
        wanted = need(ResourceType.TOPIC, "T", Action.PUB)
        assert refusal(user(), wanted, "10.0.0.1") == (
            "User:alice has no permission to access Topic:T from 10.0.0.1, no matched policies."
            " The request needs Pub on Topic:T."
        )
        denied = user(entry("Topic:T", "All", DENY))
        assert refusal(denied, wanted, "::1") == (
            "User:alice has no permission to access Topic:T from ::1, the decision is deny."
            " The request needs Pub on Topic:T."
        )
        topics = Requirement(
            *(ResourceType.TOPIC, "*", frozenset({Action.GET, Action.SUB})),
            otherwise=need(ResourceType.CLUSTER, "c", Action.GET),
        )
        expected = "The request needs Sub or Get on Topic:*, or Get on Cluster:c."
        assert (refusal(user(), topics, "::1") or "").endswith(expected)

    def test_the_more_specific_entry_decides(self) -> None:
        assert not may(user(entry("*"), entry("Topic:*", "All", DENY)), Action.PUB)
        assert may(user(entry("Topic:*", "All", DENY), entry("Topic:T*")), Action.PUB)
        # Java up to 5.3.3 takes the shorter prefix first.
        deny_longer = user(entry("Topic:a*"), entry("Topic:ab*", "All", DENY))
        assert may(deny_longer, Action.PUB, "ac")
        assert not may(deny_longer, Action.PUB, "abc")
        assert not may(user(entry("Topic:T*"), entry("Topic:T", "All", DENY)), Action.PUB)

    def test_an_entry_for_other_actions_does_not_decide(self) -> None:
        assert may(user(entry("Topic:T", "Sub", DENY), entry("Topic:*", "Pub")), Action.PUB)
        # A request that asks for any of several actions is denied by an entry for one of them.
        several = need(ResourceType.TOPIC, "T", Action.PUB, Action.SUB, Action.GET)
        mixed = user(entry("Topic:T", "Sub", DENY), entry("Topic:*", "Pub"))
        assert refusal(mixed, several, "") is not None

    def test_an_entry_for_other_addresses_is_as_if_absent(self) -> None:
        some = user(entry("Topic:T", "All", DENY, "10.0.0.0/8"), entry("*"))
        assert not may(some, Action.PUB, source="10.1.2.3")
        assert may(some, Action.PUB, source="192.168.0.1")
        assert not may(user(entry("*", "All", ALLOW, "::1")), Action.PUB, source="")
        assert may(user(entry("*", "All", ALLOW, "0:0::1")), Action.PUB, source="::1")
        assert may(user(entry("*", "All", ALLOW, "10.0.0.1")), Action.PUB, source="::ffff:10.0.0.1")

    def test_the_default_policy_follows_if_no_custom_entry_applies(self) -> None:
        both = user(entry("Topic:T", "Sub"), default=(entry("Topic:*", "Pub"),))
        assert may(both, Action.PUB)
        assert may(both, Action.SUB)
        assert not may(user(entry("*", "All", DENY), default=(entry("*"),)), Action.PUB)

    def test_internal_topics_need_an_entry_of_their_own(self) -> None:
        wanted = Requirement(ResourceType.TOPIC, "HALF", frozenset({Action.SUB}), explicit="HALF")
        assert refusal(user(entry("*"), entry("Topic:*"), entry("Topic:H*")), wanted, "")
        assert refusal(user(entry("Topic:HALF", "Sub")), wanted, "") is None

    def test_an_alternative_is_sufficient(self) -> None:
        cluster = need(ResourceType.CLUSTER, "c", Action.GET)
        either = Requirement(ResourceType.TOPIC, "*", frozenset({Action.LIST}), otherwise=cluster)
        assert refusal(user(entry("Topic:*", "List")), either, "") is None
        assert refusal(user(entry("Cluster:c", "Get")), either, "") is None
        assert refusal(user(entry("Topic:T", "List")), either, "") is not None

    def test_an_alternative_does_not_outweigh_a_denial(self) -> None:
        cluster = need(ResourceType.CLUSTER, "c", Action.GET)
        either = Requirement(ResourceType.TOPIC, "*", frozenset({Action.LIST}), otherwise=cluster)
        denied = user(entry("Topic:*", "List", DENY), entry("Cluster:c", "Get"))
        assert "the decision is deny." in (refusal(denied, either, "") or "")


# -- a plain reading ------------------------------------------------------------------------------

RESOURCES = ["*", *(f"{t}:{n}{w}" for t in ResourceType for n in NAMES for w in ("", "*") if n + w)]
SOURCES = ["10.0.0.1", "10.0.0.0/24", "::1"]
ENTRIES = st.builds(
    entry,
    st.sampled_from(RESOURCES),
    st.lists(st.sampled_from(list(Action)), min_size=1, max_size=3).map(",".join),
    st.sampled_from(Decision),
)
WITH_SOURCE = st.builds(
    lambda one, text: PolicyEntry(one.resource, one.actions, one.decision, (parse_source(text),)),
    ENTRIES,
    st.sampled_from(SOURCES),
)
POLICIES = st.lists(st.one_of(ENTRIES, WITH_SOURCE), max_size=8, unique_by=lambda e: e.resource)
WANTED = st.builds(
    lambda kind, name, actions: Requirement(kind, name, frozenset(actions)),
    st.sampled_from(ResourceType),
    st.sampled_from(NAMES[1:]),
    st.sets(st.sampled_from([a for a in Action if a is not Action.ALL]), min_size=1, max_size=2),
)


def plainly_allowed(policies: list[list[PolicyEntry]], wanted: Requirement, source: str) -> bool:
    for policy in policies:
        matching = [
            one
            for one in policy
            if one.resource.kind in (None, wanted.kind)
            and (
                one.resource.name == wanted.name
                if one.resource.match is MatchKind.LITERAL
                else wanted.name.startswith(one.resource.name)
            )
            and (Action.ALL in one.actions or one.actions & wanted.actions)
            and (not one.sources or any(ip_address(source) in net for net in one.sources))
        ]
        order = list(MatchKind)
        matching.sort(
            key=lambda e: (
                e.resource.kind is None,
                order.index(e.resource.match),
                -len(e.resource.name),
                e.decision is ALLOW,
            )
        )
        if matching:
            return matching[0].decision is ALLOW
    return False


@given(
    custom=POLICIES, default=POLICIES, wanted=WANTED, source=st.sampled_from(["10.0.0.1", "::1"])
)
def test_the_decision_is_that_of_a_plain_reading(
    custom: list[PolicyEntry], default: list[PolicyEntry], wanted: Requirement, source: str
) -> None:
    who = user(*custom, default=tuple(default))
    expected = plainly_allowed([custom, default], wanted, source)
    assert (refusal(who, wanted, source) is None) is expected


# -- the rest -------------------------------------------------------------------------------------


def test_a_later_entry_replaces_the_one_with_the_same_resource() -> None:
    policy = Policy([entry("Topic:T", "Pub")]).with_entries([entry("Topic:T", "Sub", DENY)])
    assert policy.entries == (entry("Topic:T", "Sub", DENY),)
    assert policy.without(Resource.parse("Topic:T")).entries == ()


def test_a_policy_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="at most 1000 per policy"):
        Policy(entry(f"Topic:t{number}") for number in range(1001))


@pytest.mark.parametrize(("length", "is_kept"), [(NAME_MAX, True), (NAME_MAX + 1, False)])
def test_long_names_of_clients_are_not_kept(length: int, is_kept: bool) -> None:
    first, again = (need(ResourceType.GROUP, "g" * length, Action.SUB) for _ in range(2))
    assert first == again
    assert (first is again) is is_kept


def test_addresses_are_parsed() -> None:
    assert parse_address("fe80::1%eth0") == ip_address("fe80::1")
    assert parse_address("host") is None
    assert source_text(parse_source("10.0.0.7")) == "10.0.0.7"
    assert source_text(parse_source("10.1.2.3/8")) == "10.0.0.0/8"
    with pytest.raises(ConfigError, match="source ip = 'x'"):
        parse_source("x")


def test_the_text_of_a_user_shows_no_password() -> None:
    assert SECRET not in repr(user())
