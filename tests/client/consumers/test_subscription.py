"""Valid and invalid subscriptions."""

from typing import Any

import pytest
from tests.client.clusters import fill, running_cluster

from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    ConfigError,
    IllegalMessageError,
    PushConsumer,
    RequestError,
    SimpleConsumer,
    SubscriptionData,
    WrongTypeError,
    by_sql,
    by_tags,
)
from firetrail.format.values.javahash import java_hash


class TestSubscriptions:
    def test_tags_are_split_and_hashed(self) -> None:
        wanted = by_tags("T", " a ||b|| ")
        assert wanted.tags_set == ["a", "b"]
        assert wanted.code_set == [java_hash("a"), java_hash("b")]

    @pytest.mark.parametrize("expression", ["*", "", "a || *"])
    def test_an_empty_expression_or_a_star_selects_all_messages(self, expression: str) -> None:
        wanted = by_tags("T", expression)
        assert (wanted.sub_string, wanted.tags_set, wanted.code_set) == ("*", [], [])

    @pytest.mark.parametrize("wrong", [3, None])
    def test_the_allowed_types_of_a_subscription_are_named(self, wrong: Any) -> None:
        expected = "expected tags, '*' for all messages, or the result of by_tags or by_sql"
        with pytest.raises(WrongTypeError) as caught:
            SimpleConsumer("127.0.0.1:1", "G", {"T": wrong})
        assert str(caught.value) == f"topics['T'] = {wrong}: {expected}"

    def test_an_sql_condition_is_kept_as_it_is(self) -> None:
        wanted = by_sql("T", "a > 1")
        assert (wanted.sub_string, wanted.expression_type) == ("a > 1", "SQL92")

    @pytest.mark.parametrize("expression", ["||", " || || "])
    def test_an_expression_without_a_tag_is_an_error(self, expression: str) -> None:
        with pytest.raises(ConfigError, match=r"tags of T = .*: contains no tag; use '\*' for"):
            by_tags("T", expression)

    def test_an_empty_condition_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="condition for T = ' ': is empty"):
            by_sql("T", " ")


def consumers(namesrv: str, topics: Any) -> list[PushConsumer | SimpleConsumer]:
    return [
        PushConsumer(namesrv, "G", lambda _: None, topics),
        SimpleConsumer(namesrv, "G", topics),
    ]


@pytest.mark.parametrize(
    ("topics", "error", "message"),
    [
        ({}, ConfigError, "topics = {}: expected topics and tags, such as"),
        ("T", ConfigError, "topics = 'T': expected topics and tags"),
        ({"T": by_tags("U")}, ConfigError, "is a subscription of U"),
        ({"a b": "*"}, IllegalMessageError, "topic: 'a b' has a character"),
    ],
)
def test_invalid_topics_are_rejected(topics: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PushConsumer("127.0.0.1:1", "G", lambda _: None, topics)
    with pytest.raises(error, match=message):
        SimpleConsumer("127.0.0.1:1", "G", topics)


@pytest.mark.parametrize("is_there", [True, False], ids=["topic", "no topic yet"])
@pytest.mark.parametrize(
    ("wanted", "allowed", "message"),
    [
        (by_sql("T", "a >"), True, "broker-a rejects the condition 'a >' for T: "),
        (by_sql("T", "a > 1"), False, "does not support consumer to filter message by SQL92"),
        (SubscriptionData("T", "a", "XPATH", 1), False, "rejects the condition 'a' for T"),
    ],
    ids=["no SQL", "switched off", "unknown"],
)
async def test_a_condition_that_a_broker_rejects_is_an_error_at_open(
    wanted: SubscriptionData, allowed: bool, message: str, is_there: bool
) -> None:
    """Opening fails; otherwise the broker would reject every pull."""
    async with running_cluster(BrokerConfig(property_filter=allowed)) as namesrv:
        if is_there:
            await fill(namesrv, "T", 1)
        for consumer in consumers(namesrv, {"T": wanted}):
            with pytest.raises(RequestError, match=message):
                await consumer.open()
