"""``firetrail group``, at a cluster that ``firetrail up`` has started."""

import asyncio
from typing import Any

from firetrail.client import Admin
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig


async def group_of(namesrv: str, name: str) -> SubscriptionGroupConfig:
    async with Admin(namesrv) as admin:
        return (await admin.groups())[name]


def listed_groups(ask: Any) -> list[list[str]]:
    return [line.split() for line in ask("group", "list").out.splitlines()]


def test_groups_are_created_shown_and_deleted(ask: Any, namesrv: str) -> None:
    assert ask("group", "create", "Crew", "--retries", "3").out == "Crew: created\n"
    group = asyncio.run(group_of(namesrv, "Crew"))
    assert (group.retry_max_times, group.consume_message_orderly) == (3, False)
    ask("group", "create", "Crew", "--orderly")
    assert asyncio.run(group_of(namesrv, "Crew")).consume_message_orderly
    assert ["Crew", "retries", "16", "orderly"] in listed_groups(ask)
    said = "Crew: retries 16, orderly\nCrew: no member is connected\n"
    assert ask("group", "show", "Crew").out == said
    settings = {"group": "Crew", "retries": 16, "orderly": True}
    settings |= {"may_consume": True, "may_broadcast": True}
    assert ask("group", "show", "Crew", "--json").json == {**settings, "members": []}
    assert settings in ask("group", "list", "--json").json
    assert ask("group", "delete", "Crew").out == "Crew: deleted\n"
    assert "Crew" not in [line[0] for line in listed_groups(ask)]
