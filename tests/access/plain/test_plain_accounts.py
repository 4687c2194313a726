"""The accounts of ACL 1.0: the same verdicts as RocketMQ's, from the decision of ACL 2.0."""

from typing import Any

import pytest

from firetrail.access.implied_permissions import group_need, topic_need
from firetrail.access.plain.plain_accounts import PlainAccount, PlainPermission
from firetrail.auth.policies import refusal
from firetrail.auth.resources import Action, Requirement, ResourceType, need
from firetrail.errors import ConfigError

KEYS = {"accessKey": "shop-account", "secretKey": "0123456-key"}
PUB, SUB, GET = Action.PUB, Action.SUB, Action.GET


def account(**members: Any) -> PlainAccount:
    return PlainAccount.of({**KEYS, **members})


def why(wanted: Requirement, **members: Any) -> str | None:
    return refusal(account(**members).user("C1"), wanted, "10.0.0.1")


@pytest.mark.parametrize(
    ("word", "may_pub", "may_sub"),
    [
        ("PUB", True, False),
        ("SUB", False, True),
        ("PUB|SUB", True, True),
        (" SUB|PUB ", True, True),
        ("DENY", False, False),
        ("pub", False, False),  # as in RocketMQ
        ("ANY", False, False),
        ("", False, False),
    ],
)
def test_permissions_allow_what_they_name(word: str, may_pub: bool, may_sub: bool) -> None:
    named: dict[str, Any]
    for named in ({"topicPerms": [f"T1={word}"]}, {"defaultTopicPerm": word}):
        assert (why(topic_need("T1", PUB), **named) is None) == may_pub
        assert (why(topic_need("T1", SUB), **named) is None) == may_sub
        assert (why(topic_need("T1", GET), **named) is None) == (may_pub or may_sub)
    for named in ({"groupPerms": [f"G1={word}"]}, {"defaultGroupPerm": word}):
        assert (why(group_need("G1", SUB), **named) is None) == may_sub
        assert (why(topic_need("%RETRY%G1", PUB), **named) is None) == may_sub
    assert (why(group_need("G1", SUB), topicPerms=[f"%RETRY%G1={word}"]) is None) == may_sub


def test_a_listed_name_is_decided_by_its_own_permission_alone() -> None:
    listed: dict[str, Any] = {"defaultTopicPerm": "PUB|SUB", "topicPerms": ["T1=PUB", "T2=DENY"]}
    assert why(topic_need("T1", PUB), **listed) is None
    assert why(topic_need("T1", SUB), **listed) == "No permission for topic:T1"
    assert why(topic_need("T2", PUB), **listed) is not None
    assert why(topic_need("T3", SUB), **listed) is None


def test_refusals_have_the_texts_of_rocketmq() -> None:
    assert why(topic_need("T1", PUB)) == "No default permission for topic:T1"
    assert why(group_need("G1", SUB)) == "No default permission for group:G1"
    for wanted in (
        need(ResourceType.CLUSTER, "C1", GET),
        topic_need("T1", Action.CREATE),
        group_need("G1", Action.DELETE),
    ):
        assert why(wanted, defaultTopicPerm="PUB|SUB", defaultGroupPerm="PUB|SUB") == (
            f"Need admin permission for {wanted.resource}, but accessKey=shop-account is not"
        )
        assert why(wanted, admin="true") is None


def test_everybody_may_send_traces_and_look_up_the_topic_of_new_topics() -> None:
    assert why(topic_need("RMQ_SYS_TRACE_TOPIC", PUB)) is None
    assert why(topic_need("RMQ_SYS_TRACE_TOPIC", PUB), topicPerms=["RMQ_SYS_TRACE_TOPIC=DENY"]) is (
        None
    )
    assert why(topic_need("RMQ_SYS_TRACE_TOPIC", SUB)) is not None
    assert why(topic_need("TBW102", PUB, SUB, GET)) is None
    assert why(topic_need("TBW102", PUB)) is not None


def test_everybody_may_reply_to_the_clients_of_the_cluster() -> None:
    assert why(topic_need("C1_REPLY_TOPIC", PUB)) is None
    assert why(topic_need("C1_REPLY_TOPIC", PUB), topicPerms=["C1_REPLY_TOPIC=DENY"]) is None
    assert why(topic_need("C1_REPLY_TOPIC", SUB)) is not None
    assert why(topic_need("C2_REPLY_TOPIC", PUB)) is not None


def test_internal_topics_are_not_part_of_the_default() -> None:
    assert why(topic_need("rmq_sys_wheel_timer", SUB), defaultTopicPerm="PUB|SUB") is not None


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"accessKey": "short"}, "needs 7 characters"),
        ({"accessKey": "a:b:c:d:e"}, "letters, digits and"),
        ({"secretKey": "short!"}, "7 to 256 characters are allowed"),
        ({"secretKey": "12345678"}, "RocketMQ's example"),
        ({"secretKey": ["a"]}, "must be text"),
        ({"topicPerms": ["T1"]}, "must be name=permission"),
        ({"topicPerms": "T1=PUB"}, "must be a list"),
        ({"topicPerms": ["a*=PUB"]}, "names are exact"),
        ({"whiteRemoteAddress": "10.0.0.0/8"}, "must be an address, or a pattern"),
    ],
)
def test_invalid_accounts_are_refused_without_their_secrets(
    members: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        account(**members)
    assert text in str(caught.value)
    assert KEYS["secretKey"] not in str(caught.value)
    assert "short!" not in str(caught.value)


def test_a_request_changes_what_it_names_only() -> None:
    first = account(admin="false", topicPerms=["T1=PUB"], whiteRemoteAddress="10.0.0.1")
    second = first.changed({"topicPerms": "T2=SUB,T3=DENY", "defaultGroupPerm": "SUB"})
    assert second.topics == {"T2": PlainPermission.SUB, "T3": PlainPermission.DENY}
    assert second.default_group is PlainPermission.SUB
    assert second.secret_key == first.secret_key
    assert second.white_address == first.white_address
    assert second.changed({"admin": "true"}).is_admin
    for wrong in ({"topicPerms": "T1=pub"}, {"defaultTopicPerm": "ANY"}):
        with pytest.raises(ConfigError, match="must be one of DENY, PUB, SUB"):
            first.changed(wrong)


def test_secrets_are_not_shown() -> None:
    assert KEYS["secretKey"] not in repr(account())
    assert KEYS["secretKey"] not in repr(account().user("C1"))
