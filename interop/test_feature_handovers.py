"""Features that not every store has, through a hand-over: Java, Firetrail, Java, Firetrail.

A line of :data:`OWNERS` says which side begins and how each of them stops.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from interop import commands, ours
from interop.messages import STORE_V4, message, plain, stored_by
from interop.peer import FEW, Java, Json
from interop.views import QueueName, QueueView, java_queues, queues_of

from firetrail import Store

OWNERS = [
    pytest.param(line, killed, id=f"{line}-{'killed' if killed else 'closed'}")
    for line, killed in (("v4", True), ("v5", False), ("v5", True))
]
LMQ = ("--lmq",)


def light(who: str, *named: str) -> list[Json]:
    """Return some messages that name these light queues in turn, and one that names all of them."""
    queues = [[name] for name in named] * 3 + [list(named), []]
    return [
        message(
            "mqtt",
            f"{who} {number}".encode(),
            queue_id=number % 2,
            properties={"TAGS": who} | ({"INNER_MULTI_DISPATCH": ",".join(names)} if names else {}),
        )
        for number, names in enumerate(queues)
    ]


def in_java(answers: list[Json]) -> dict[str, list[int]]:
    """Return the physical offsets of the messages of each light queue, as Java read them."""
    return {
        topic: [message["physical_offset"] for message in queue.messages]
        for (topic, _), queue in java_queues(answers).items()
        if topic.startswith("%LMQ%")
    }


def in_firetrail(root: Path, messages: int) -> dict[str, list[int]]:
    """Return the same as Firetrail finds it, in a copy."""
    copy = shutil.copytree(root, root.with_name(f"{root.name}-copy"))
    with Store.open(copy) as store:
        found = {
            topic: [message.physical_offset for message in store.read(topic)]
            for topic in store.topics()
            if topic.startswith("%LMQ%")
        }
    commands.check_clean(copy, messages)
    shutil.rmtree(copy)
    return found


@pytest.mark.parametrize(("line", "killed"), OWNERS)
def test_light_queues(line: str, killed: bool, tmp_path: Path) -> None:
    root, java = tmp_path / "store", Java(line)
    lines = light("java", "%LMQ%a", "%LMQ%b")
    _, answers = java.session(root, lines, "read", sizes=FEW, options=LMQ, kill=killed)
    expected = in_java(answers)
    assert len(expected["%LMQ%a"]) == 4
    assert in_firetrail(root, 8) == expected

    mine = stored_by(STORE_V4, light("firetrail", "%LMQ%a", "%LMQ%new"))
    results = ours.write(root, mine, sizes=FEW, kill=killed)
    for name in ("%LMQ%a", "%LMQ%new"):
        expected.setdefault(name, []).extend(
            result["physical_offset"]
            for result, message in zip(results, mine, strict=True)
            if name in message["properties"].get("INNER_MULTI_DISPATCH", "").split(",")
        )
    assert in_firetrail(root, 16) == expected

    again = light("again", "%LMQ%new", "%LMQ%b")
    before, _, after = java.session(
        root, "read", again, "read", sizes=FEW, options=LMQ, kill=killed
    )
    assert in_java(before) == expected
    expected = in_java(after)
    assert [len(expected[name]) for name in ("%LMQ%a", "%LMQ%b", "%LMQ%new")] == [8, 8, 8]
    assert in_firetrail(root, 24) == expected


def sizes_of(queues: Mapping[QueueName, QueueView]) -> dict[int, int]:
    """Return how many messages each queue of the topic has."""
    return {queue_id: len(queue.messages) for (_, queue_id), queue in queues.items()}


def sizes_in_firetrail(root: Path) -> dict[int, int]:
    """Return the same as Firetrail finds it, in a copy."""
    copy = shutil.copytree(root, root.with_name(f"{root.name}-copy"))
    with Store.open(copy) as store:
        found = sizes_of(queues_of(store))
    code, (report,) = commands.run("fsck", copy, "--json")
    assert (code, report["problems"]) == (0, [])
    shutil.rmtree(copy)
    return found


@pytest.mark.parametrize(("line", "killed"), OWNERS[1:])
def test_missing_queue_files(line: str, killed: bool, tmp_path: Path) -> None:
    """Firetrail rebuilds a queue whose files are missing. Java does so only after a kill.

    If the store was closed, Java begins with number 0 again, and the earlier messages are only in
    the log, as if the queue had been deleted. The next owner of the store cannot tell the
    difference.
    """
    root, java = tmp_path / "store", Java(line)
    java.session(root, [plain(number) for number in range(20)], sizes=FEW, kill=killed)
    shutil.rmtree(root / "consumequeue" / "T1" / "1")
    assert sizes_in_firetrail(root) == {0: 10, 1: 10}

    mine = stored_by(STORE_V4, [plain(number) for number in range(20, 24)])
    results = ours.write(root, mine, sizes=FEW, kill=killed)
    assert [result["queue_offset"] for result in results] == [10, 10, 11, 11]
    assert sizes_in_firetrail(root) == {0: 12, 1: 12}

    shutil.rmtree(root / "consumequeue" / "T1" / "0")
    before, _, after = java.session(
        root, "read", [plain(number) for number in range(24, 28)], "read", sizes=FEW, kill=killed
    )
    assert sizes_of(java_queues(before)) == ({0: 12, 1: 12} if killed else {1: 12})
    left = {0: 14, 1: 14} if killed else {0: 2, 1: 14}
    assert sizes_of(java_queues(after)) == left
    assert sizes_in_firetrail(root) == left
