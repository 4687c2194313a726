"""The rows of both views, compared with records that were decoded one by one."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers import small_config
from tests.pipeline.oddlog import ODD_RECORDS, PLAIN_RECORDS, write_log
from tests.pipeline.source.shelf import (
    COMMITTED,
    PREPARED,
    ROLLED_BACK,
    by_place,
    consumed,
    fill,
    row_of,
    rows_of,
    some_messages,
)
from tests.stores import GOLDEN, copy_of, records
from tests.stores import NAMES as STORES

from firetrail import Message, Store, StoreConfig
from firetrail.format.names import CONSUME_QUEUE
from firetrail.pipeline.source import split_reader
from firetrail.pipeline.source.plan import log_splits
from firetrail.pipeline.source.schema import METADATA, NAMES
from firetrail.store.inspect.view import StoreView
from firetrail.store.repair.backup import back_up
from firetrail.system import SYSTEM

WAYS = {"by the log": 10**9, "by the units": 0}
"""Values of SCAN_RATIO that make queues be read in one way."""


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_splits, "SCAN_RATIO", WAYS[request.param])


def test_a_log_in_several_folders_is_read(tmp_path: Path, way: None) -> None:
    folders = tuple(str(tmp_path / name) for name in ("d1", "d2"))
    with Store.open(tmp_path / "store", small_config(commit_log_paths=folders)) as store:
        for message in some_messages(60):
            store.put(message)
    assert all(list(Path(folder).iterdir()) for folder in folders)
    back_up(SYSTEM, tmp_path / "store", tmp_path / "copy", StoreConfig())  # in one folder
    expected = [row_of(record) for record in records(tmp_path / "copy")]
    assert len(expected) == 60
    assert rows_of(tmp_path / "store", view="log", minPartitions="5") == expected
    assert by_place(rows_of(tmp_path / "store")) == consumed(tmp_path / "copy")


def test_a_store_with_extended_units_is_read(tmp_path: Path, way: None) -> None:
    """The tags codes of its units are addresses; Spark compares the tags of the records."""
    config = small_config(extended_queues=True, extension_file_size=256)
    with Store.open(tmp_path, config) as store:
        for message in some_messages(40):
            store.put(message)
    assert by_place(rows_of(tmp_path)) == consumed(tmp_path)
    tags = {row["tags"] for row in consumed(tmp_path)} - {None}
    for tag in tags:
        expected = [row for row in consumed(tmp_path) if row["tags"] == tag]
        assert by_place(rows_of(tmp_path, tags=tag)) == expected


@pytest.mark.parametrize("name", STORES)
class TestGoldenStores:
    def test_the_log_has_every_record(self, name: str) -> None:
        expected = [row_of(record) for record in records(GOLDEN / name)]
        for partitions in ("1", "20"):
            rows = rows_of(GOLDEN / name, view="log", minPartitions=partitions)
            assert rows == expected

    def test_queues_have_every_message(self, name: str, way: None) -> None:
        expected = consumed(GOLDEN / name)
        assert expected
        for partitions in ("1", "20"):
            rows = rows_of(GOLDEN / name, minPartitions=partitions)
            assert by_place(rows) == expected

    def test_selected_columns_equal_those_of_all(self, name: str) -> None:
        columns = ("size", "topic", "store_time")
        rows = rows_of(GOLDEN / name, columns, view="log")
        everything = rows_of(GOLDEN / name, view="log")
        assert rows == [{column: row[column] for column in columns} for row in everything]
        assert [list(row) for row in rows] == [list(columns)] * len(rows)


messages = st.builds(
    Message,
    topic=st.sampled_from(["T", "U", "%RETRY%V"]),
    body=st.binary(max_size=300),
    tags=st.sampled_from([None, "A", "中"]),
    keys=st.lists(st.sampled_from(["k1", "k2", "ключ"]), max_size=3),
    properties=st.dictionaries(
        st.sampled_from(["a", "b", "é"]), st.text("xyz\U0001f600", min_size=1)
    ),
    queue_id=st.integers(0, 2),
    sys_flag=st.sampled_from([0, 0, 0, PREPARED, ROLLED_BACK, COMMITTED]),
    reconsume_times=st.integers(0, 9),
)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(messages, min_size=1, max_size=60), st.integers(1, 6), st.sampled_from(list(WAYS)))
def test_random_stores_are_read_in_both_views(
    tmp_path_factory: pytest.TempPathFactory, put: list[Message], partitions: int, chosen: str
) -> None:
    path = tmp_path_factory.mktemp("any")
    fill(path, put)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_splits, "SCAN_RATIO", WAYS[chosen])
        count = str(partitions)
        log = rows_of(path, view="log", minPartitions=count)
        assert log == [row_of(record) for record in records(path)]
        assert len(log) == len(put)
        queues = rows_of(path, minPartitions=count)
    assert by_place(queues) == consumed(path)
    hidden = [message for message in put if message.sys_flag in (PREPARED, ROLLED_BACK)]
    assert len(queues) == len(put) - len(hidden)


def test_unusual_records_are_read(tmp_path: Path) -> None:
    """They have text that is not UTF-8, repeated names, and hosts and times out of range."""
    odd = [*PLAIN_RECORDS, *ODD_RECORDS]
    write_log(tmp_path, odd)
    columns = [name for name in NAMES if name not in ("msg_id", "born_time", "store_time")]
    rows = rows_of(tmp_path, columns, view="log")
    expected = []
    for record in records(tmp_path):
        fields = {name: getattr(record, name) for name in columns if hasattr(record, name)}
        expected.append(
            fields
            | {
                "keys": list(record.keys),
                "born_host": str(record.born_host),
                "store_host": str(record.store_host),
            }
        )
    assert len(rows) == len(odd)
    assert rows == expected


def test_times_beyond_what_spark_knows_are_null(tmp_path: Path) -> None:
    write_log(tmp_path, [{"born_time": 2**62}, {"store_time": -(2**63)}, {}])
    rows = rows_of(tmp_path, ("born_time", "store_time"), view="log")
    assert [row["born_time"] is None for row in rows] == [True, False, False]
    assert [row["store_time"] is None for row in rows] == [False, True, False]


def test_batches_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: None) -> None:
    monkeypatch.setattr(split_reader, "BATCH_BYTES", 1000)
    fill(tmp_path, some_messages(100))
    assert by_place(rows_of(tmp_path)) == consumed(tmp_path)
    sizes = []
    for split in log_splits.plan_log(_view(tmp_path)):
        sizes += [batch.num_rows for batch in split_reader.read_split(split)]
    assert len(sizes) > 10
    assert max(sizes) < 12


def _view(path: Path) -> StoreView:
    return StoreView.open(path)


def test_units_decide_what_is_in_a_queue(tmp_path: Path) -> None:
    """If a queue's offsets began again, it has one of two messages with the same offset."""
    root = copy_of("v4-rolled", tmp_path)
    queue = root / CONSUME_QUEUE / "T1" / "0" / f"{0:020d}"
    content = bytearray(queue.read_bytes())
    everything = rows_of(root, METADATA)
    swapped = content[20:40] + content[:20] + content[40:]
    queue.write_bytes(swapped)
    rows = rows_of(root, METADATA, mode="permissive")
    lost = [row for row in everything if row not in rows]
    assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in lost] == [
        ("T1", 0, 0),
        ("T1", 0, 1),
    ]
