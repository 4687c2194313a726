"""Reads by offset, time, key and tag, and ranges that do not exist."""

import json
import re
from pathlib import Path

import pytest
from tests.helpers import START_MS
from tests.pipeline.source.shelf import (
    STEP_MS,
    by_place,
    consumed,
    fill,
    rows_of,
    rows_with,
    some_messages,
)
from tests.stores import log_file, overwrite

from firetrail import Message
from firetrail.errors import ConfigError, DataLostError, NotAStoreError, StoreDamagedError
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.names import CONSUME_QUEUE, INDEX
from firetrail.pipeline.batch_plan import explain
from firetrail.pipeline.source.plan.ranges import Bounds

PLACE = ("topic", "queue_id", "queue_offset", "physical_offset")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    fill(path, some_messages(150))
    return path


def offsets(rows: list[dict[str, object]], topic: str, queue_id: int) -> list[object]:
    return [
        row["queue_offset"] for row in rows if (row["topic"], row["queue_id"]) == (topic, queue_id)
    ]


class TestOffsets:
    def test_both_ends(self, store: Path) -> None:
        start, end = {"usual": {"0": 10, "1": -1}}, {"usual": {"0": 20, "1": -1}}
        rows = rows_of(
            store, PLACE, startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)
        )
        assert offsets(rows, "usual", 0) == list(range(10, 20))
        assert offsets(rows, "usual", 1) == []
        assert offsets(rows, "rare", 0) == [0, 1, 2]
        assert rows_of(store, PLACE, startingOffsets="latest") == []

    def test_an_unknown_queue_is_refused(self, store: Path) -> None:
        for name in ("startingOffsets", "endingOffsets"):
            with pytest.raises(ConfigError, match=r"usual/7.*the queues are rare/0, rare/1"):
                rows_with({"path": str(store), name: '{"usual": {"7": 1}}'})

    def test_an_offset_beyond_the_end_is_refused(self, store: Path) -> None:
        for name in ("startingOffsets", "endingOffsets"):
            with pytest.raises(ConfigError, match=r"usual/0 ends at \d+; use an offset"):
                rows_with({"path": str(store), name: '{"usual": {"0": 100000}}'})

    def test_a_deleted_offset_is_data_loss(self, store: Path) -> None:
        first = sorted((store / "commitlog").iterdir())[0]
        first.unlink()
        rows = rows_of(store, PLACE)
        low = min(offsets(rows, "usual", 0))  # type: ignore[type-var]
        assert isinstance(low, int)
        assert low > 1
        start = json.dumps({"usual": {"0": 1}})
        with pytest.raises(DataLostError, match=rf"usual/0 now begins at {low}, .* from 1 on"):
            rows_of(store, startingOffsets=start)
        again = rows_of(store, PLACE, startingOffsets=start, failOnDataLoss="false")
        assert again == rows


class TestTimes:
    def test_only_rows_of_the_times_are_read(self, store: Path) -> None:
        since, until = START_MS + 40 * STEP_MS, START_MS + 60 * STEP_MS
        for view in ("queue", "log"):
            everything = rows_of(store, view=view)
            rows = rows_of(
                store, view=view, startingTimestamp=str(since), endingTimestamp=str(until)
            )
            assert rows
            assert rows == [
                row
                for row in everything
                if since <= row["store_time"].timestamp() * 1000 + 0.5
                and row["store_time"].timestamp() * 1000 + 0.5 < until
            ]

    @pytest.mark.parametrize("key", ["", "all"])
    def test_queues_can_have_times_of_their_own(self, store: Path, key: str) -> None:
        middle = START_MS + 70 * STEP_MS
        columns = (*PLACE, "store_time")
        given = {"path": str(store)} | ({"subscribe": "usual", "key": key} if key else {})
        everything = rows_with(given, columns)
        options = {
            "startingOffsetsByTimestamp": json.dumps({"usual": {"0": middle}}),
            "endingOffsetsByTimestamp": json.dumps({"usual": {"1": middle}}),
        }
        expected = [
            row
            for row in everything
            if (row["topic"] == "rare")
            or (row["store_time"].timestamp() * 1000 >= middle) == (row["queue_id"] == 0)
        ]
        assert rows_with(given | options, columns) == expected
        for name in options:
            with pytest.raises(ConfigError, match=rf"{name} = 'usual/7': no such queue"):
                rows_with({"path": str(store), name: '{"usual": {"7": 1}}'})

    def test_a_range_of_times_without_messages_is_empty(self, store: Path) -> None:
        assert rows_of(store, startingTimestamp=str(START_MS * 2)) == []
        assert rows_of(store, endingTimestamp="0") == []


class TestPlaces:
    @pytest.mark.parametrize("view", ["queue", "log"])
    def test_only_rows_between_physical_offsets_are_read(self, store: Path, view: str) -> None:
        everything = rows_of(store, PLACE, view=view)
        first, end = (int(everything[n]["physical_offset"]) for n in (40, 60))
        for low, high, expected in (
            (first, end, everything[40:60]),
            (first - 1, end + 1, everything[40:61]),
            (first + 1, end - 1, everything[41:60]),
            (end, first, []),
            (0, 1 << 62, everything),
        ):
            places = {"startingPhysicalOffset": str(low), "endingPhysicalOffset": str(high)}
            assert rows_with({"path": str(store), "view": view} | places, PLACE) == expected

    def test_only_rows_of_the_queue_ids_are_read(self, store: Path) -> None:
        everything = rows_of(store, PLACE)
        rows = [row for row in everything if row["queue_id"] == 1]
        assert 0 < len(rows) < len(everything)
        assert rows_of(store, PLACE, queueIds="1, 7") == rows
        assert rows_of(store, PLACE, queueIds="7") == []
        with pytest.raises(
            ConfigError, match=r"queueIds.* does not apply to view=log, which has no queues"
        ):
            rows_of(store, view="log", queueIds="1")
        with pytest.raises(ConfigError, match="must be a list of queue ids, separated by commas"):
            rows_of(store, queueIds="one")


class TestDamage:
    """Damage is skipped, and hides no other message from a search."""

    PERMISSIVE = {"permissive": True}  # noqa: RUF012

    @pytest.mark.parametrize("view", ["queue", "log"])
    def test_a_damaged_record_hides_no_others(self, store: Path, view: str) -> None:
        everything = rows_of(store, view=view)
        since = everything[20]["store_time"]
        options = {
            "path": str(store),
            "view": view,
            "startingTimestamp": str(int(since.timestamp() * 1000)),
            "mode": "permissive",
        }
        for victim in everything[21:61]:
            path, at = log_file(store, victim["physical_offset"])
            content = path.read_bytes()
            overwrite(path, at + 4, bytes(4))
            expected = [row for row in everything[20:] if row != victim]
            assert rows_with(options, how=self.PERMISSIVE) == expected
            path.write_bytes(content)

    @pytest.mark.parametrize("partitions", ["1", "3"])
    def test_a_damaged_unit_hides_no_others(self, store: Path, partitions: str) -> None:
        everything = rows_of(store, PLACE)
        place, time = rows_of(store, ["physical_offset", "store_time"])[20].values()
        options = {"path": str(store), "mode": "permissive", "minPartitions": partitions}
        searches = (
            {"startingPhysicalOffset": str(place)},
            {"startingTimestamp": str(int(time.timestamp() * 1000))},
        )
        for victim in everything[25:120:7]:
            if victim["topic"] == "rare":
                continue
            number = victim["queue_offset"]
            folder = store / CONSUME_QUEUE / "usual" / str(victim["queue_id"])
            path = sorted(folder.iterdir())[number // 40]
            content = path.read_bytes()
            overwrite(path, number % 40 * UNIT_SIZE, bytes(UNIT_SIZE))
            expected = [row for row in everything[20:] if row != victim]
            for search in searches:
                assert rows_with(options | search, PLACE, how=self.PERMISSIVE) == expected
                with pytest.raises(StoreDamagedError):
                    rows_with({"path": str(store)} | search, PLACE)
            path.write_bytes(content)


class TestTagsAndKeys:
    def test_only_rows_with_the_tags_are_read(self, store: Path) -> None:
        for view in ("queue", "log"):
            rows = rows_of(store, view=view, tags="A || none")
            assert rows == [row for row in rows_of(store, view=view) if row["tags"] == "A"]

    @pytest.mark.parametrize("view", ["queue", "log"])
    @pytest.mark.parametrize("key", ["k77", "all", "nobody's"])
    def test_only_rows_with_the_key_are_read(self, store: Path, view: str, key: str) -> None:
        rows = rows_of(store, view=view, key=key, subscribe="usual")
        expected = rows_of(store, subscribe="usual")  # rolled back messages are not in the index
        assert by_place(rows) == [row for row in by_place(expected) if key in row["keys"]]
        text = explain(path=str(store), view=view, key=key, subscribe="usual")
        assert re.search(
            r"\b(1 message|\d+ messages) found through (1 index file|\d+ index files)\b", text
        )

    def test_a_message_is_found_by_its_unique_key(self, tmp_path: Path) -> None:
        ids = {"UNIQ_KEY": "0A0B0C"}
        fill(tmp_path, [Message("T", b"x", properties=ids), *some_messages(9)])
        assert [row["body"] for row in rows_of(tmp_path, key="0A0B0C", subscribe="T")] == [b"x"]

    def test_what_the_index_does_not_cover_is_scanned(self, store: Path) -> None:
        expected = by_place(rows_of(store, key="all", subscribe="usual,rare"))
        assert expected == consumed(store)
        oldest = sorted((store / INDEX).iterdir())[0]
        oldest.unlink()
        text = explain(path=str(store), key="all", subscribe="usual,rare")
        assert "that they do not cover are scanned" in text
        assert by_place(rows_of(store, key="all", subscribe="usual,rare")) == expected
        for path in (store / INDEX).iterdir():
            path.unlink()
        assert by_place(rows_of(store, key="all", subscribe="usual,rare")) == expected

    def test_a_damaged_index_is_an_error(self, store: Path) -> None:
        newest = sorted((store / INDEX).iterdir())[-1]
        newest.write_bytes(b"\xff" * newest.stat().st_size)
        with pytest.raises(StoreDamagedError, match=newest.name):
            rows_of(store, key="all", subscribe="usual")
        rows = rows_of(store, key="all", subscribe="usual,rare", mode="permissive")
        assert by_place(rows) == consumed(store)


class TestTopics:
    def test_only_topics_that_match_the_pattern_are_read(self, store: Path) -> None:
        for view in ("queue", "log"):
            rows = rows_of(store, view=view, subscribePattern="ra.*")
            expected = [row for row in rows_of(store, view=view) if row["topic"] == "rare"]
            assert by_place(rows) == expected
            assert rows_of(store, view=view, subscribePattern="nothing") == []

    @pytest.mark.parametrize("key", ["", "all"])
    def test_only_assigned_queues_are_read(self, store: Path, key: str) -> None:
        assign = json.dumps({"usual": [1], "rare": [0]})
        given = {"path": str(store), "assign": assign} | ({"key": key} if key else {})
        expected = [
            row
            for row in rows_of(store, PLACE)
            if (row["topic"], row["queue_id"]) in (("usual", 1), ("rare", 0))
        ]
        assert rows_with(given, PLACE) == expected
        some = Bounds(topics=frozenset({"usual"}))
        assert rows_with(given, PLACE, some) == [r for r in expected if r["topic"] == "usual"]

    def test_an_assigned_queue_must_exist(self, store: Path) -> None:
        with pytest.raises(ConfigError, match=r"assign = 'nix': .* has no such topic"):
            rows_of(store, assign='{"nix": [0]}')
        assign = '{"usual": [1, 2]}'
        with pytest.raises(ConfigError, match="'usual/2': no such queue; the queues are usual/0"):
            rows_of(store, assign=assign)
        (store / "config").mkdir(exist_ok=True)
        table = {"topicConfigTable": {"usual": {"topicName": "usual", "readQueueNums": 3}}}
        (store / "config" / "topics.json").write_text(json.dumps(table))
        assert rows_of(store, assign=assign) == rows_of(store, assign='{"usual": [1]}')

    def test_an_unknown_topic_is_refused(self, store: Path) -> None:
        for view in ("queue", "log"):
            with pytest.raises(
                ConfigError, match=r"'usal'.*no such topic; its topics are rare, usual"
            ):
                rows_of(store, view=view, subscribe="usal,rare")

    def test_a_topic_without_messages_has_no_rows(self, store: Path) -> None:
        (store / "config").mkdir(exist_ok=True)
        table = {"topicConfigTable": {"fresh": {"topicName": "fresh"}}}
        (store / "config" / "topics.json").write_text(json.dumps(table))
        assert rows_of(store, subscribe="fresh") == []
        assert rows_of(store, view="log", subscribe="fresh") == []


class TestStores:
    def test_a_folder_without_a_store_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(NotAStoreError, match="no such folder"):
            rows_of(tmp_path / "nowhere")
        with pytest.raises(NotAStoreError, match="not a message store"):
            rows_of(tmp_path)

    def test_an_empty_store_has_no_rows(self, tmp_path: Path) -> None:
        (tmp_path / "commitlog").mkdir()
        assert rows_of(tmp_path) == []
        assert rows_of(tmp_path, view="log") == []

    def test_a_queue_that_cannot_be_read(self, store: Path) -> None:
        queue = store / CONSUME_QUEUE / "usual" / "1"
        for path in sorted(queue.iterdir())[:1]:
            path.write_bytes(path.read_bytes()[:-7])
        with pytest.raises(StoreDamagedError, match=r"usual/1.*firetrail rebuild"):
            rows_of(store)
        rows = rows_of(store, mode="permissive")
        assert {(row["topic"], row["queue_id"]) for row in rows} == {
            ("usual", 0),
            ("rare", 0),
            ("rare", 1),
        }
        assert {row["topic"] for row in rows_of(store, subscribe="rare")} == {"rare"}
