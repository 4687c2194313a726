"""``firetrail topic``, at a cluster that ``firetrail up`` has started."""

from typing import Any

from tests.cli.conftest import Firetrail
from tests.cli.live_clusters import lonely_name_server, settle

from firetrail.remoting.messages.bodies import TopicConfig, TopicConfigTable


def test_topics_are_created_shown_and_deleted(ask: Any, namesrv: str) -> None:
    assert ask("topic", "create", "Made", "--queues", "3").out == "Made: 3 queues\n"
    assert "Made" in ask("topic", "list").out.splitlines()
    ask("send", "Made", "x")
    settle(namesrv, "Made", 1)
    rows = ask("topic", "--json", "show", "Made").lines
    assert [(row["broker"], row["queue_id"]) for row in rows] == [("broker-a", n) for n in range(3)]
    assert sum(row["max_offset"] for row in rows) == 1
    assert ask("topic", "show", "Made").out.splitlines()[0].split()[:2] == ["BROKER", "QUEUE"]
    assert ask("topic", "show", "Made", "--json").lines == rows  # also after the action
    assert ask("topic", "--json", "delete", "Made").json == {"topic": "Made", "deleted": True}
    assert "Made" not in ask("topic", "--json", "list").out


def test_types_of_topics_are_set_and_shown(ask: Any) -> None:
    ask("topic", "create", "Ordered", "--queues", "2", "--type", "fifo")
    ask("topic", "create", "Untyped", "--queues", "1")
    lines = [line.split() for line in ask("topic", "list").out.splitlines()]
    assert ["Ordered", "FIFO"] in lines and ["Untyped"] in lines
    listed = ask("topic", "list", "--json").json
    assert {"topic": "Ordered", "type": "FIFO", "system": False} in listed
    assert {"topic": "Untyped", "type": None, "system": False} in listed
    assert ask("topic", "show", "Ordered").out.splitlines()[1].split()[-1] == "FIFO"
    assert [row["type"] for row in ask("topic", "show", "Ordered", "--json").lines] == ["FIFO"] * 2
    assert [row["type"] for row in ask("topic", "show", "Untyped", "--json").lines] == [None]
    ask("topic", "create", "Ordered", "--queues", "2")  # a change of the queues keeps the type
    assert ask("topic", "show", "Ordered", "--json").lines[0]["type"] == "FIFO"


def test_topics_of_a_broker_that_is_down_are_listed(firetrail: Firetrail) -> None:
    with lonely_name_server(TopicConfigTable({"Left": TopicConfig("Left")})) as namesrv:
        result = firetrail("topic", "list", "-n", namesrv)
        assert (result.code, result.out) == (0, "Left\n")
        assert "nor which topics are those of the system: 127.0.0.1:1" in result.err


def test_system_topics_are_listed_apart(ask: Any) -> None:
    ask("topic", "create", "Zebras", "--queues", "1")
    result = ask("topic", "list")
    names = result.out.splitlines()
    assert "Zebras" in names and "TBW102" not in names and "broker-a" not in names
    assert "system topics not listed; --all lists them" in result.err
    lines = [line.split() for line in ask("topic", "list", "--all").out.splitlines()]
    assert lines.index(["Zebras"]) < lines.index(["TBW102", "system"])
    assert ["RMQ_SYS_TRANS_HALF_TOPIC", "system"] in lines
    listed = {row["topic"]: row["system"] for row in ask("topic", "list", "--json").json}
    assert not listed["Zebras"]
    assert listed["TBW102"] and listed["broker-a"] and listed["DefaultCluster"]


def test_a_topic_without_queues_is_refused(firetrail: Firetrail) -> None:
    result = firetrail("topic", "create", "T", "--queues", "0")
    assert result.code == 2
    assert "--queues: expected a whole number, at least 1: '0'" in result.err
