"""Warnings about groups that receive from a FIFO topic without order."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from firetrail.errors import NotReachedError
from firetrail.proxy.calls.consumption import unordered_groups
from firetrail.proxy.calls.consumption.unordered_groups import UnorderedGroups
from firetrail.proxy.upstream.interface import Brokers
from firetrail.remoting.messages.bodies import TopicConfig

FIFO = TopicConfig("F", attributes={"message.type": "FIFO"})


def groups_with(topic: Any) -> UnorderedGroups:
    return UnorderedGroups(cast(Brokers, SimpleNamespace(topic=topic)))


async def test_a_limited_number_of_groups_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unordered_groups, "PAIRS_MAX", 2)
    groups = groups_with(lambda _: FIFO)
    for name in ("A", "A", "B", "C"):
        await groups.check(name, "F")
    assert [record.getMessage().split()[1] for record in caplog.records] == ["A", "B"]


async def test_a_topic_whose_type_is_unknown_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def lost(_: str) -> TopicConfig | None:
        raise NotReachedError("b: the connection was lost")

    await groups_with(lost).check("G", "F")
    await groups_with(lambda _: None).check("G", "F")
    await groups_with(lambda _: TopicConfig("F")).check("G", "F")
    assert not caplog.records
