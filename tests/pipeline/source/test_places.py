"""Stores in remote file systems."""

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import fsspec
import pytest
from pyarrow.fs import LocalFileSystem
from tests.helpers import START_MS
from tests.pipeline.source.shelf import STEP_MS, consumed, fill, rows_of, rows_with, some_messages
from tests.stores import flip, log_file, records

from firetrail.errors import ConfigError, NotAStoreError, PipelineError, StoreDamagedError
from firetrail.format.names import segment_name
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.source import places
from firetrail.pipeline.source.damage import plan_damage, read_damage
from firetrail.pipeline.source.places import RemoteFiles, is_remote, local_path, open_log
from firetrail.pipeline.source.plan import log_splits, remote
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.source.store_stream import QueueStreamReader

MESSAGES = 150


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    fill(path, some_messages(MESSAGES))
    return path


@pytest.fixture(params=["memory", "zip"])
def url(store: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Copy only the store's log to another file system."""
    files = sorted((store / "commitlog").iterdir())
    if request.param == "zip":
        with ZipFile(tmp_path / "store.zip", "w", ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, f"archive/commitlog/{path.name}")
        yield f"zip://archive::{tmp_path}/store.zip"
        return
    memory = fsspec.filesystem("memory")
    for path in files:
        memory.pipe(f"/bucket/store/commitlog/{path.name}", path.read_bytes())
    yield "memory://bucket/store"
    memory.rm("/bucket", recursive=True)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "FETCH_BYTES", 1000)
    monkeypatch.setattr(remote, "WINDOW", 600)


def test_urls_and_paths_are_told_apart() -> None:
    assert is_remote("s3://bucket/store")
    assert not is_remote("/data/store")
    assert not is_remote("file:///data/store")
    assert local_path("file:///data/my%20store") == Path("/data/my store")
    assert local_path("store") == Path("store")


@pytest.mark.parametrize("partitions", ["1", "3", "9"])
def test_rows_are_those_of_the_local_store(
    store: Path, url: str, small_pieces: None, partitions: str
) -> None:
    assert rows_of(url, view="log", minPartitions=partitions) == rows_of(store, view="log")
    assert rows_of(url, minPartitions=partitions) == consumed(store)
    plan = plan_batch(parse_options({"path": url, "minPartitions": partitions}))
    assert len(plan.splits) >= int(partitions)


def test_a_local_url_is_read_as_a_path(store: Path) -> None:
    assert rows_of(f"file://{store}") == rows_of(store)


def test_topics_and_tags_are_filtered_in_remote_stores(store: Path, url: str) -> None:
    assert rows_of(url, subscribe="rare", view="log") == rows_of(
        store, subscribe="rare", view="log"
    )
    assert rows_of(url, tags="A") == [row for row in consumed(store) if row["tags"] == "A"]
    found = rows_of(url, key="k77", subscribe="usual")
    assert [row["properties"]["n"] for row in found] == ["77"]


def test_times_prune_segments(store: Path, url: str) -> None:
    since, until = START_MS + 60 * STEP_MS, START_MS + 62 * STEP_MS
    times = {"startingTimestamp": str(since), "endingTimestamp": str(until)}
    rows = rows_with({"path": url, "view": "log"} | times)
    assert rows == rows_with({"path": str(store), "view": "log"} | times)
    assert len(rows) == 2
    plan = plan_batch(parse_options({"path": url} | times))
    segments = len(list((store / "commitlog").iterdir()))
    assert f"log: {segments} segments, 1 of them" in str(plan)


@pytest.mark.parametrize("view", ["queue", "log"])
def test_physical_offsets_select_records_of_remote_stores(
    store: Path, url: str, small_pieces: None, view: str
) -> None:
    everything = rows_of(store, view=view)
    for first, end in ((30, 90), (31, 32)):
        low, high = (int(everything[n]["physical_offset"]) for n in (first, end))
        for less in (0, 1):
            starting, ending = str(low - less), str(high - less)
            places = {"startingPhysicalOffset": starting, "endingPhysicalOffset": ending}
            assert rows_with({"path": url, "view": view} | places) == everything[first:end]


def test_physical_offsets_where_records_are_large(
    store: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first fetched bytes do not contain a whole record."""
    everything = rows_of(store, view="log")
    monkeypatch.setattr(remote, "WINDOW", 50)
    low, high = (int(everything[n]["physical_offset"]) - 1 for n in (30, 90))
    places = {"startingPhysicalOffset": str(low), "endingPhysicalOffset": str(high)}
    assert rows_with({"path": url, "view": "log"} | places) == everything[30:90]


def test_only_what_a_split_covers_is_fetched(url: str) -> None:
    with open_log(url, 100, 200) as log:
        segment = log.segments[0]
        assert any(segment.view[100:200])
        assert not any(segment.view[:100])
        assert not any(segment.view[200:])


def test_damage_in_a_remote_store_is_listed(store: Path) -> None:
    victim = records(store)[70]
    path, at = log_file(store, victim.physical_offset)
    flip(path, at + 5)
    memory = fsspec.filesystem("memory")
    for file in (store / "commitlog").iterdir():
        memory.pipe(f"/damaged/commitlog/{file.name}", file.read_bytes())
    url = "memory://damaged"
    with pytest.raises(StoreDamagedError, match=f"{url}/commitlog/{path.name} at offset {at} "):
        rows_of(url)
    how = {"permissive": True}
    assert len(rows_of(url, view="log", how=how, mode="permissive")) == MESSAGES - 1
    splits = plan_damage(parse_options({"path": url, "view": "damage"}))
    rows = [row for split in splits for batch in read_damage(split) for row in batch.to_pylist()]
    assert [row["physical_offset"] for row in rows] == [victim.physical_offset]
    memory.rm("/damaged", recursive=True)


def test_options_that_need_queues_are_refused(url: str) -> None:
    for name, value in (
        ("startingOffsets", "earliest"),
        ("endingOffsets", "latest"),
        ("subscribePattern", ".*"),
        ("queueIds", "1"),
        ("assign", '{"T": [0]}'),
        ("startingOffsetsByTimestamp", '{"T": {"0": 1}}'),
        ("endingOffsetsByTimestamp", '{"T": {"0": 1}}'),
    ):
        with pytest.raises(ConfigError, match="does not apply to remote stores"):
            rows_with({"path": url, name: value})
    with pytest.raises(ConfigError, match="local or mounted"):
        QueueStreamReader(parse_options({"path": url}, stream=True), ("topic",))
    with pytest.raises(NotAStoreError, match="no log segments"):
        rows_of("memory://nowhere")
    with pytest.raises(PipelineError, match="no file system for gopher://"):
        rows_of("gopher://store")


def test_splits_are_cut_inside_of_segments(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_splits, "SPLIT_BYTES", 2000)
    plan = plan_batch(parse_options({"path": url, "view": "log"}))
    assert len(plan.splits) > 8
    assert len(rows_of(url, view="log")) == MESSAGES


def test_reads_of_remote_files_are_those_of_their_mapping(tmp_path: Path) -> None:
    content = bytes(range(1, 201))
    path = tmp_path / segment_name(1000)
    path.write_bytes(content)
    fetched = RemoteFiles(LocalFileSystem(), 1050, 1150)
    descriptor = fetched.open(path, writable=False)
    with fetched.map(descriptor, 200, writable=False) as mapping:
        for at, size in ((0, 200), (0, 50), (40, 20), (60, 20), (140, 30), (150, 50), (100, 0)):
            assert fetched.read_at(descriptor, at, size) == mapping[at : at + size]
    fetched.close(descriptor)
