"""Reading from a broker without Spark: the rows equal those of its store's files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import small_config
from tests.pipeline.source.shelf import fill, some_messages
from tests.pipeline.wire.talk import create, send

from firetrail import Message
from firetrail.broker.background import BackgroundBroker
from firetrail.errors import ConfigError, DataLostError, PipelineError, StoreDamagedError
from firetrail.pipeline.batch_plan import explain, plan_batch
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS, Bounds
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.source.split_reader import read_split
from firetrail.pipeline.wire import broker_reader as reading
from firetrail.pipeline.wire.broker_reader import read_wire
from firetrail.pipeline.wire.broker_splits import WireSplit

CONFIG = small_config(log=8192, units=40, slots=16, entries=64)
COUNT = 300


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wire") / "store"
    fill(path, some_messages(COUNT))
    return path


@pytest.fixture(scope="module")
def namesrv(root: Path) -> Iterator[str]:
    with BackgroundBroker(root, store=CONFIG) as broker:
        create(broker.namesrv, "usual", 2)
        create(broker.namesrv, "rare", 2)
        yield broker.namesrv


def rows(bounds: Bounds = NO_BOUNDS, /, **given: str) -> list[dict[str, Any]]:
    options = parse_options(given)
    found = []
    for split in plan_batch(options, bounds).splits:
        read: Any = read_wire if isinstance(split, WireSplit) else read_split
        how = {"permissive": options.permissive, "allow_loss": not options.fail_on_data_loss}
        for batch in read(split, **how):
            found += batch.to_pylist()
    return sorted(found, key=lambda row: row["physical_offset"])


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({}, NO_BOUNDS),
        ({"subscribe": "rare"}, NO_BOUNDS),
        ({"subscribePattern": "us.*"}, NO_BOUNDS),
        ({"tags": "A || B"}, NO_BOUNDS),
        ({"subscribe": "usual", "key": "k77"}, NO_BOUNDS),
        ({"minPartitions": "5"}, NO_BOUNDS),
        ({"assign": '{"usual": [1], "rare": ["0"]}'}, NO_BOUNDS),
        ({"assign": '{"usual": [1], "rare": [0]}'}, Bounds(topics=frozenset({"usual"}))),
        (
            {
                "startingOffsets": '{"usual": {"0": 7, "1": -1}}',
                "endingOffsets": '{"usual": {"0": 99}, "rare": {"1": -2}}',
            },
            NO_BOUNDS,
        ),
        ({"startingTimestamp": "FIRST", "endingTimestamp": "LAST"}, NO_BOUNDS),
        ({"startingOffsetsByTimestamp": '{"usual": {"1": FIRST}}'}, NO_BOUNDS),
        (
            {
                "startingOffsetsByTimestamp": '{"usual": {"1": FIRST}}',
                "endingOffsetsByTimestamp": '{"usual": {"0": LAST, "1": LAST}}',
            },
            NO_BOUNDS,
        ),
        ({"queueIds": "1"}, NO_BOUNDS),
        ({"startingPhysicalOffset": "9000", "endingPhysicalOffset": "20000"}, NO_BOUNDS),
        ({}, Bounds(topics=frozenset({"usual"}), queue_ids=frozenset({1}))),
        ({}, Bounds(queue_offsets=(5, 40))),
        ({}, Bounds(physical_offsets=(9000, 20_000))),
    ],
)
def test_rows_equal_those_of_the_files(
    root: Path, namesrv: str, options: dict[str, str], bounds: Bounds
) -> None:
    everything = rows(path=str(root))
    times = [int(row["store_time"].timestamp() * 1000) for row in everything]
    marks = {"FIRST": str(times[50]), "LAST": str(times[200])}
    given = {
        name: re.sub("FIRST|LAST", lambda mark: marks[mark[0]], value)
        for name, value in options.items()
    }
    expected = rows(bounds, path=str(root), **given)
    assert expected
    assert rows(bounds, namesrv=namesrv, **given) == expected


def test_times_as_predicates_prune(root: Path, namesrv: str) -> None:
    time = int(rows(path=str(root))[100]["store_time"].timestamp() * 1000)
    found = rows(Bounds(times=(time, time + 1)), namesrv=namesrv)
    assert [row["physical_offset"] for row in found] == [
        rows(path=str(root))[100]["physical_offset"]
    ]


def test_rows_keep_the_order_of_their_queue(namesrv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers may arrive in any order, and few of them may wait."""
    monkeypatch.setattr(reading, "SLICE", 3)
    monkeypatch.setattr(reading, "HELD_BYTES", 1000)
    monkeypatch.setattr(reading, "BATCH_BYTES", 2000)
    options = parse_options({"namesrv": namesrv, "subscribe": "usual"})
    (split,) = plan_batch(options).splits
    assert isinstance(split, WireSplit)
    batches = list(read_wire(split, ["queue_id", "queue_offset"]))
    assert len(batches) > 5
    found = [(row["queue_id"], row["queue_offset"]) for b in batches for row in b.to_pylist()]
    assert found == sorted(found)
    assert len(found) > 200


def test_a_reader_that_is_left_early(namesrv: str) -> None:
    options = parse_options({"namesrv": namesrv, "subscribe": "usual"})
    (split,) = plan_batch(options).splits
    assert isinstance(split, WireSplit)
    batches = read_wire(split)
    assert next(batches).num_rows
    batches.close()  # type: ignore[attr-defined]


def test_the_plan_says_what_it_does(namesrv: str) -> None:
    text = explain(namesrv=namesrv, subscribe="rare")
    assert f"rocketmq namesrv={namesrv}, view=queue" in text
    assert re.search(r"\n\d+ messages of 2 queues, about \d+ bytes, to pull\n1 partition$", text)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"subscribe": "nix"}, r"'nix': namesrv=.* has no such topic; its topics are "),
        ({"assign": '{"nix": [0]}'}, "assign = 'nix': .* has no such topic"),
        ({"assign": '{"usual": [0, 7]}'}, "assign = 'usual/7': no such queue"),
        ({"startingOffsets": '{"usual": {"7": 0}}'}, "usual/7': no such queue"),
        ({"startingOffsets": '{"usual": {"other/0": 0}}'}, "usual/other/0': no such queue"),
        ({"startingOffsets": '{"usual": {"0": 9999}}'}, "use an offset of at most"),
    ],
)
def test_wrong_options_are_refused(namesrv: str, options: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        rows(namesrv=namesrv, **options)


def test_an_unreachable_name_server_is_an_error() -> None:
    with pytest.raises(
        PipelineError, match=r"namesrv=127.0.0.1:1: .*name server cannot be reached"
    ):
        rows(namesrv="127.0.0.1:1", retryTimeoutMs="0")


class TestLoss:
    def lost(self, root: Path, namesrv: str) -> WireSplit:
        """A split whose beginning retention deleted after planning."""
        options = parse_options({"namesrv": namesrv, "subscribe": "T"})
        (split,) = plan_batch(options).splits
        assert isinstance(split, WireSplit)
        return split

    @pytest.fixture
    def split(self, tmp_path: Path) -> Iterator[WireSplit]:
        with BackgroundBroker(tmp_path, store=CONFIG) as broker:
            create(broker.namesrv, "T", 1)
            send(broker.namesrv, [Message("T", b"%d" % n * 50) for n in range(100)])
            planned = self.lost(tmp_path, broker.namesrv)
        for path in sorted((tmp_path / "commitlog").iterdir())[:1]:
            path.unlink()
        with BackgroundBroker(tmp_path, store=CONFIG) as broker:
            yield WireSplit(broker.namesrv, planned.group, planned.ranges, planned.wanted)

    def test_lost_messages_are_an_error(self, split: WireSplit) -> None:
        with pytest.raises(DataLostError, match=r"queue T/.*/0: 0 up to 100 are to be read"):
            list(read_wire(split))

    def test_lost_messages_are_skipped_if_allowed(self, split: WireSplit) -> None:
        (batch,) = read_wire(split, allow_loss=True)
        offsets = batch.column("queue_offset").to_pylist()
        assert offsets == list(range(offsets[0], 100))
        assert offsets[0] > 10

    def test_a_queue_that_has_become_shorter_is_an_error(self, split: WireSplit) -> None:
        """This is another broker, or one that lost its last messages."""
        (part,) = split.ranges
        longer = part.range.__class__("T", 0, 90, 200)
        asked = WireSplit(
            split.namesrv, split.group, (part.__class__(part.broker, longer),), split.wanted
        )
        with pytest.raises(DataLostError, match="up to 100"):
            list(read_wire(asked))
        (batch,) = read_wire(asked, allow_loss=True)
        assert batch.num_rows == 10


class TestDamage:
    """A broker that does not look at what it serves, as Java's."""

    @pytest.fixture
    def namesrv(self, tmp_path: Path) -> Iterator[str]:
        with BackgroundBroker(tmp_path, store=CONFIG.replace(verify_reads=False)) as broker:
            create(broker.namesrv, "T", 1)
            send(broker.namesrv, [Message("T", b"body %d" % n) for n in range(10)])
            log = tmp_path / "commitlog" / f"{0:020}"
            data = log.read_bytes()
            with log.open("r+b") as file:
                file.seek(data.index(b"body 5"))
                file.write(b"BODY")
            yield broker.namesrv

    def test_a_wrong_checksum_is_an_error(self, namesrv: str) -> None:
        with pytest.raises(StoreDamagedError, match=r"queue T/.*/0 at offset 5: .*body CRC"):
            rows(namesrv=namesrv, subscribe="T")

    def test_a_wrong_checksum_is_skipped_if_permissive(self, namesrv: str) -> None:
        found = rows(namesrv=namesrv, subscribe="T", mode="permissive")
        assert [row["queue_offset"] for row in found] == [0, 1, 2, 3, 4, 6, 7, 8, 9]

    def test_bodies_that_are_not_read_are_verified(self, namesrv: str) -> None:
        options = parse_options({"namesrv": namesrv, "subscribe": "T"})
        (split,) = plan_batch(options).splits
        assert isinstance(split, WireSplit)
        with pytest.raises(StoreDamagedError, match="body CRC"):
            list(read_wire(split, ["size"]))
        assert sum(batch.num_rows for batch in read_wire(split, ["size"], permissive=True)) == 9
