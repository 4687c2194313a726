"""The same calls on the same store: Firetrail and Java answer alike.

The table of calls is generated from what is in the store: every queue, at and around its bounds
and the ends of its files, with several counts and tag filters; queues that do not exist. Where
the answers differ by design, the difference is named here and held to.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from interop import ours
from interop.history import QUERY_MAX, History
from interop.messages import STORE_V4, encoded, mixed, plain, specials, stored_by
from interop.peer import FEW, Java, Json, Sizes
from interop.views import described, without_crc

from firetrail import Store

WIDE = Sizes(log=4 << 20, queue=30_000, slots=500, entries=20_000)
TAGS = (None, "*", "Tag1", "Tag0||Tag2", "TagA", "метка😀", "often", "nobody-has-this")
COUNTS = (1, 7, 32, 100)
MOST = 64
"""Messages of one query."""
LINES = [Java("v4"), Java("v5")]
MISSING = (("T1", 9), ("nothing-here", 0))


class Get(NamedTuple):
    """One call."""

    topic: str
    queue_id: int
    offset: int
    limit: int
    tags: str | None

    def command(self) -> str:
        """For the Java peer."""
        tags = f" --tags {self.tags}" if self.tags else ""
        return (
            f"get --topic {self.topic} --queue {self.queue_id} --offset {self.offset} "
            f"--max {self.limit}{tags}"
        )

    def ask(self, store: Store) -> Json:
        """Ask Firetrail; return the answer in the form of the peer."""
        result = store.get(self.topic, self.queue_id, self.offset, self.limit, self.tags)
        return {
            "status": result.status.value,
            "next_offset": result.next_offset,
            "min_offset": result.min_offset,
            "max_offset": result.max_offset,
            "physical_offsets": [message.physical_offset for message in result.messages()],
        }


class Query(NamedTuple):
    """One query by key."""

    topic: str
    key: str
    begin: int
    end: int
    limit: int

    def command(self) -> str:
        """For the Java peer."""
        return (
            f"query --topic {self.topic} --key {self.key} --begin {self.begin} --end {self.end} "
            f"--max {self.limit}"
        )


@dataclass(frozen=True)
class Scene:
    """A store, what must be in it, and Java's answers to a table of calls."""

    root: Path
    history: History
    java: Java
    gets: list[Get]
    got: list[Json]
    queries: list[Query]
    searched: list[list[Json]]


def gets(history: History, whole: History, sizes: Sizes) -> list[Get]:
    """Calls for every queue that there ever was: its edges, those of its files, and some more."""
    rng = random.Random(1)
    per_file = sizes.queue // 20
    left = history.queues()
    calls = [
        Get(topic, queue_id, offset, 32, None) for topic, queue_id in MISSING for offset in (0, 5)
    ]
    for (topic, queue_id), records in whole.queues().items():
        high = records[-1]["queue_offset"] + 1
        kept = left.get((topic, queue_id))
        low = kept[0]["queue_offset"] if kept else high
        edges = [base + step for base in range(0, high, per_file) for step in (-1, 0, 1)]
        others = rng.sample(range(low, high), min(10, high - low))
        around = {-1, 0, low - 1, low, low + 1, high - 1, high, high + 1, high + 1000}
        for offset in sorted({*edges, *others, *around}):
            for tags in rng.sample(TAGS, 3):
                calls.append(Get(topic, queue_id, offset, rng.choice(COUNTS), tags))
    return calls


def queries(history: History) -> list[Query]:
    """Return queries: every key without bounds, and some with bounds around their messages."""
    rng = random.Random(2)
    calls = []
    for (topic, key), records in history.by_key().items():
        calls.append(Query(topic, key, 0, (1 << 63) - 1, QUERY_MAX))
        times = [record["store_time"] for record in records]
        if len(times) > 1:
            for _ in range(6):
                begin, end = sorted(rng.choices(times, k=2))
                shift = rng.choice((-1, 0, 1))
                calls.append(Query(topic, key, begin + shift, end + shift, rng.choice(COUNTS)))
    return calls


def asked(root: Path, history: History, whole: History, java: Java, sizes: Sizes) -> Scene:
    """Let Java answer the table, and look times up, in a copy of the store."""
    calls, searches = gets(history, whole, sizes), queries(history)
    copy = shutil.copytree(root, root.with_name(f"asked-{java.line}"))
    history.date_queue_files(copy, sizes)
    answers = java.session(
        copy,
        *history.questions(java.line),
        *(call.command() for call in calls),
        *(search.command() for search in searches),
        sizes=sizes,
        kill=True,
    )
    searched = answers[-len(searches) :]
    got = answers[-len(searches) - len(calls) : -len(searches)]
    history.check_java(answers[: -len(searches) - len(calls)], java.line, sizes)
    return Scene(root, history, java, calls, [answer[0] for answer in got], searches, searched)


@pytest.fixture(scope="module", params=LINES, ids=lambda java: java.line)
def rolled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Written by Java over some seconds, all files rolled."""
    java: Java = request.param
    root = tmp_path_factory.mktemp("rolled") / "store"
    lines = [{**line, "pause_ms": 12} for line in mixed(1, 200, specials())]
    (results,) = java.session(root, lines, sizes=FEW)
    history = History()
    history.add(lines, results, java.line)
    return asked(root, history, history, java, FEW)


@pytest.fixture(scope="module")
def expired(rolled: Scene, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The same after Firetrail's retention has deleted the first files of the log."""
    root = shutil.copytree(rolled.root, tmp_path_factory.mktemp("expired") / "store")
    config = FEW.config(delete_batch_max=2, delete_interval_ms=0)
    with Store.open(root, config) as store:
        assert store.delete_expired(forced=True) == 2
        first, _ = store.log_range
    return asked(root, rolled.history.since(first), rolled.history, rolled.java, FEW)


@pytest.fixture(scope="module")
def wide_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, History]:
    """Written by Firetrail: bodies that fill an answer, a queue longer than one look at it."""
    root = tmp_path_factory.mktemp("wide") / "store"
    body = encoded(bytes(100_000))
    large = [{**plain(i, "large", queues=1), "body": body} for i in range(12)]
    rare = [plain(i, "rare", queues=1) for i in range(1500)]
    for line in rare[:1300]:
        line["properties"]["TAGS"] = "often"
    lines = stored_by(STORE_V4, large + rare)
    history = History()
    history.add(lines, ours.write(root, lines, sizes=WIDE), "firetrail")
    return root, history


@pytest.fixture(scope="module", params=LINES, ids=lambda java: java.line)
def wide(request: pytest.FixtureRequest, wide_store: tuple[Path, History]) -> Scene:
    """That store before both versions of Java."""
    root, history = wide_store
    return asked(root, history, history, request.param, WIDE)


def check_gets(scene: Scene) -> None:
    """Equal answers, but for two cases in which Firetrail knows better."""
    emptied = scene.history.emptied if scene.java.line == "v4" else {}
    with Store.open(scene.root) as store:
        for call, java in zip(scene.gets, scene.got, strict=True):
            answer, name = call.ask(store), (call.topic, call.queue_id)
            if name in MISSING:
                # Java makes the queue when it is asked for it, and then finds it empty.
                assert java["status"] == "NO_MESSAGE_IN_QUEUE"
                assert answer == {**java, "status": "NO_MATCHED_LOGIC_QUEUE"}
            elif name in emptied:
                # 4.9 leaves the beginning where it was; Firetrail, as 5.x, moves it to the end.
                assert not java["physical_offsets"] and not answer["physical_offsets"]
                assert answer["min_offset"] == answer["max_offset"] == java["max_offset"]
            else:
                assert answer == java, call


def check_queries(scene: Scene) -> None:
    """Firetrail is exact. Java is to the second: the index has no milliseconds."""
    by_key = scene.history.by_key()
    with Store.open(scene.root) as store:
        for call, java in zip(scene.queries, scene.searched, strict=True):
            found = [described(record) for record in store.query(*call)]
            exact = [
                record
                for record in reversed(by_key[call.topic, call.key])
                if call.begin <= record["store_time"] <= call.end
            ]
            assert without_crc(found) == exact[: min(call.limit, MOST)], call
            check_to_the_second(call, found, java)


def check_to_the_second(call: Query, exact: list[Json], java: list[Json]) -> None:
    """Check that Java's answer, unless it is cut, has the messages of the exact one.

    They may differ in messages that are less than a second from the bounds.
    """
    if len(java) < min(call.limit, MOST):
        for record in (*exact, *java):
            edge = min(abs(record["store_time"] - at) for at in (call.begin, call.end))
            assert edge < 1000 or (record in exact and record in java), call


def test_the_table_reaches_every_answer_of_a_whole_store(rolled: Scene) -> None:
    assert {answer["status"] for answer in rolled.got} == {
        "FOUND",
        "NO_MATCHED_MESSAGE",
        "OFFSET_TOO_SMALL",
        "OFFSET_OVERFLOW_ONE",
        "OFFSET_OVERFLOW_BADLY",
        "NO_MESSAGE_IN_QUEUE",
    }


def test_gets_of_a_rolled_store(rolled: Scene) -> None:
    check_gets(rolled)


def test_queries_of_a_rolled_store(rolled: Scene) -> None:
    check_queries(rolled)


def test_times_and_ids_of_a_rolled_store(rolled: Scene) -> None:
    """The answers of Java were checked against the same history."""
    with Store.open(rolled.root) as store:
        rolled.history.check_firetrail(store)


def test_gets_after_retention(expired: Scene) -> None:
    check_gets(expired)


def test_queries_after_retention(expired: Scene) -> None:
    check_queries(expired)


def test_times_and_ids_after_retention(expired: Scene) -> None:
    with Store.open(expired.root) as store:
        expired.history.check_firetrail(store)


def test_gets_that_reach_a_cap(wide: Scene) -> None:
    check_gets(wide)


def test_queries_of_a_key_with_many_messages(wide: Scene) -> None:
    check_queries(wide)
