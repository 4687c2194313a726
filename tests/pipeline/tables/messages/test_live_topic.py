"""Running brokers as the source of a table: with files and archives, each message once."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline.tables.live import delete, first_broker, recreate, second_broker, send
from tests.pipeline.tables.topics import ids, numbered, put, rows, table
from tests.pipeline.wire.talk import create

from firetrail.broker.background import BackgroundBroker
from firetrail.client.cluster.offsets import Offsets
from firetrail.errors import ConfigError, DataLostError, LakeError, OutageError
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.source.plan.store_splits import QueueRange
from firetrail.pipeline.tables.messages.broker_progress import BrokerProgress
from firetrail.pipeline.tables.messages.live_topic import LiveMessages
from firetrail.pipeline.tables.messages.open_sources import OpenSources
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.explanation import explain_table
from firetrail.pipeline.tables.runs.verification import verify_table
from firetrail.pipeline.wire.broker_splits import BrokerRange, WireSplit
from firetrail.remoting.wire.codes import Permission


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "broker-a"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


@pytest.fixture
def namesrv(root: Path) -> Iterator[str]:
    with first_broker(root) as broker:
        yield broker.namesrv


def no_spark() -> SparkSession:
    raise AssertionError


class TestCluster:
    def test_all_brokers_are_read_and_one_that_appears_later(
        self, tmp_path: Path, namesrv: str, to: Path
    ) -> None:
        source = f"namesrv={namesrv}"
        send(namesrv, *numbered(range(4)))
        assert table(source, to).rows == 4
        with second_broker(tmp_path / "b", namesrv):
            create(namesrv, "orders", 2)
            send(namesrv, *numbered(range(4, 7)), broker="broker-b")
            send(namesrv, *numbered(range(7, 9)))
            done = table(source, to)
            assert (done.messages, done.lost, done.total_rows) == (5, 0, 9)
            assert table(source, to).messages == 0
            assert verify_table(source, to).ok
        found = rows(to, "id, _broker, _queue, _offset, _physical_offset")
        assert sorted(row["id"] for row in found) == list(range(9))
        assert {row["_broker"] for row in found} == {"broker-a", "broker-b"}
        assert len({(row["_broker"], row["_physical_offset"]) for row in found}) == 9

    def test_a_queue_that_appears_later(self, namesrv: str, to: Path) -> None:
        send(namesrv, *numbered(range(2)))
        table(f"namesrv={namesrv}", to)
        create(namesrv, "orders", 4)
        send(namesrv, *numbered(range(2, 6)))
        assert table(f"namesrv={namesrv}", to).rows == 4
        assert {row["_queue"] for row in rows(to)} == {0, 1, 2, 3}

    def test_a_broker_that_is_away_is_read_when_it_is_back(
        self, tmp_path: Path, namesrv: str, to: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = f"namesrv={namesrv}"
        with second_broker(tmp_path / "b", namesrv):
            create(namesrv, "orders", 2)
            send(namesrv, *numbered(range(2)), broker="broker-b")
            table(source, to)
            send(namesrv, *numbered(range(2, 4)), broker="broker-b")
        send(namesrv, *numbered(range(4, 6)))
        assert table(source, to).rows == 2
        assert "broker-b: not registered; the table has messages of it" in caplog.text
        with second_broker(tmp_path / "b", namesrv):
            assert table(source, to).rows == 2
        assert sorted(ids(to)) == list(range(6))

    def test_upserts_and_events_from_two_brokers(
        self, tmp_path: Path, namesrv: str, to: Path
    ) -> None:
        source = f"namesrv={namesrv}"
        with second_broker(tmp_path / "b", namesrv):
            create(namesrv, "orders", 2)
            send(namesrv, {"id": 1, "v": 1}, {"id": 2, "v": 1})
            send(namesrv, {"id": 2, "v": 2}, {"id": 3, "v": 2}, broker="broker-b")
            table(source, to, upsert="id", buckets=2)
            send(namesrv, {"id": 3, "v": 3})
            done = table(source, to)
            assert (done.updated, done.total_rows) == (1, 3)
            assert {row["id"]: row["v"] for row in rows(to)} == {1: 1, 2: 2, 3: 3}
            assert verify_table(source, to).ok

    def test_events_of_a_database(self, namesrv: str, to: Path) -> None:
        def event(kind: str, number: int, name: str) -> dict[str, object]:
            row = {"id": str(number), "name": name}
            return {
                **{"database": "shop", "table": "orders", "type": kind, "isDdl": False},
                **{"data": [row], "old": None, "pkNames": ["id"], "es": 1, "ts": 1, "sql": ""},
                **{"mysqlType": {"id": "bigint", "name": "varchar(9)"}, "id": 1},
                "sqlType": {"id": -5, "name": 12},
            }

        send(namesrv, event("INSERT", 1, "a"), event("INSERT", 2, "b"))
        table(f"namesrv={namesrv}", to, decoder="canal", upsert="id", buckets=2)
        send(namesrv, event("UPDATE", 2, "c"), event("DELETE", 1, "a"))
        done = table(f"namesrv={namesrv}", to)
        assert (done.updated, done.deleted) == (1, 1)
        assert [(row["id"], row["name"]) for row in rows(to)] == [(2, "c")]
        assert verify_table(f"namesrv={namesrv}", to).ok

    def test_a_dry_run_and_a_run_with_spark_tasks(
        self, spark: SparkSession, namesrv: str, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = f"namesrv={namesrv}"
        send(namesrv, *numbered(range(40)), b"{broken")
        planned = explain_table(no_spark, source, "orders", to)
        assert (planned.messages, planned.rows, planned.rejected) == (41, 40, 1)
        assert [each.broker for each in planned.brokers] == ["broker-a"]
        assert planned.brokers[0].size > 0
        assert not to.exists()
        monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
        done = table_job.table(spark, source, "orders", to, split_bytes=2000)
        assert (done.rows, done.rejected) == (40, 1)
        assert done.files > 2, "several tasks"
        assert sorted(ids(to)) == list(range(40))


class TestBackfill:
    def test_files_then_live(self, root: Path, to: Path) -> None:
        put(root, *numbered(range(5)))
        table(root, to)
        with first_broker(root) as broker:
            source = f"namesrv={broker.namesrv}"
            send(broker.namesrv, *numbered(range(5, 8)))
            done = table(source, to)
            assert (done.messages, done.lost) == (3, 0)
            send(broker.namesrv, {"id": 8})
            table(root, to)  # the files of the running broker, up to its last known sync
            table(source, to)
            files = f"broker-a={root}"
            assert table([files, source], to).messages == 0
            assert verify_table([files, source], to).ok
        assert sorted(ids(to)) == list(range(9))

    def test_an_archive_then_live_in_one_run(
        self, spark: SparkSession, root: Path, tmp_path: Path, to: Path
    ) -> None:
        put(root, *numbered(range(5)))
        archive(spark, root, tmp_path / "archive")
        with first_broker(root) as broker:
            send(broker.namesrv, *numbered(range(5, 8)))
            sources = [f"broker-a={tmp_path / 'archive'}", f"namesrv={broker.namesrv}"]
            done = table(sources, to)
            assert (done.messages, done.lost) == (8, 0)
            assert table(sources, to).messages == 0
        assert sorted(ids(to)) == list(range(8))

    def test_another_name_in_the_table(self, tmp_path: Path, to: Path) -> None:
        root = tmp_path / "data"
        put(root, *numbered(range(4)))
        table(root, to)
        with first_broker(root) as broker, second_broker(tmp_path / "b", broker.namesrv):
            create(broker.namesrv, "orders", 2)
            source = f"namesrv={broker.namesrv}"
            text = (
                f"has the brokers broker-a, broker-b, but the table the broker data.*data={source}"
            )
            with pytest.raises(ConfigError, match=text):
                table(source, to)
            send(broker.namesrv, {"id": 4})
            assert table(f"data={source}", to).rows == 1
            assert [row["_broker"] for row in rows(to)] == ["data"] * 5
            with pytest.raises(ConfigError, match=r"has no broker new, but the brokers broker-a"):
                table(f"new={source}", to)
            text = r"the brokers data and broker-a have the same log"
            with pytest.raises(ConfigError, match=text):
                table([f"broker-a={source}"], to)
            assert table(f"broker-b={source}", to).messages == 0

    def test_two_names_for_one_broker_are_found_in_the_first_run(
        self, root: Path, to: Path
    ) -> None:
        put(root, *numbered(range(2)))
        with (
            first_broker(root) as broker,
            pytest.raises(ConfigError, match="have the same log"),
        ):
            table([f"x={root}", f"namesrv={broker.namesrv}"], to)
        assert not (to / "_delta_log").exists()


class TestOtherLogs:
    def test_a_topic_that_was_deleted_and_created_again(self, namesrv: str, to: Path) -> None:
        source = f"namesrv={namesrv}"
        send(namesrv, *numbered(range(4)))
        table(source, to)
        recreate(namesrv)
        with pytest.raises(LakeError, match="ends at offset 0, but the table has its messages"):
            table(source, to)
        send(namesrv, *numbered(range(10, 12)))
        with pytest.raises(LakeError, match="ends at offset 1, but the table has its messages"):
            table(source, to)
        send(namesrv, *numbered(range(12, 20)))
        with pytest.raises(LakeError, match=r"broker-a: is not the log that the table was made"):
            table(source, to)
        assert ids(to) == list(range(4))

    def test_a_topic_that_was_deleted(self, namesrv: str, to: Path) -> None:
        source = f"namesrv={namesrv}"
        with pytest.raises(ConfigError, match=r"topic = 'orderz': .* no such topic"):
            table(source, to, topic="orderz")
        send(namesrv, *numbered(range(4)))
        table(source, to)
        delete(namesrv)
        with pytest.raises(LakeError, match="broker-a: no longer has queues of orders"):
            table(source, to)

    def test_a_topic_that_may_not_be_read(self, namesrv: str, to: Path) -> None:
        source = f"namesrv={namesrv}"
        create(namesrv, "orders", 2, perm=Permission.WRITE)
        with pytest.raises(OutageError, match=r"has queues of orders that may be read; start"):
            table(source, to)
        create(namesrv, "orders", 2)
        send(namesrv, {"id": 1})
        table(source, to)
        create(namesrv, "orders", 2, perm=Permission.WRITE)
        with pytest.raises(LakeError, match="no longer has queues of orders to read"):
            table(source, to)

    def test_another_broker_of_the_same_name(self, tmp_path: Path, namesrv: str, to: Path) -> None:
        send(namesrv, *numbered(range(4)))
        table(f"namesrv={namesrv}", to)
        with first_broker(tmp_path / "other") as other:
            send(other.namesrv, *numbered(range(6)))
            with pytest.raises(LakeError, match=r"is not the log that the table was made from"):
                table(f"namesrv={other.namesrv}", to)

    def test_messages_that_were_deleted_before_they_were_read(
        self, tmp_path: Path, to: Path
    ) -> None:
        root = tmp_path / "a"
        with first_broker(root) as broker:
            source = f"namesrv={broker.namesrv}"
            send(broker.namesrv, *numbered(range(4)))
            table(source, to)
            send(broker.namesrv, *({"id": n, "pad": "x" * 900} for n in range(4, 40)))
        remove_old_log(root)
        with BackgroundBroker(root, store=small_config()) as broker:
            source = f"namesrv={broker.namesrv}"
            with pytest.raises(DataLostError, match=r"deleted before .* --allow-gap"):
                table(source, to)
            late = WireSplit(
                broker.namesrv,
                "G",
                (BrokerRange("broker-a", QueueRange("orders", 0, 0, 9)),),
                skip_lost="--allow-gap",
            )
            with pytest.raises(DataLostError, match=r"offset 0 does not exist: .*--allow-gap"):
                list(LiveMessages("broker-a", late, False).batches())
            done = table(source, to, allow_gap=True)
            assert done.lost > 0
            assert done.messages + done.lost == 36
            assert table(source, to).messages == 0
            found = verify_table(source, to)
            assert (found.ok, found.messages) == (True, done.messages)

    def test_a_queue_that_is_no_longer_offered(self, namesrv: str, to: Path) -> None:
        source = f"namesrv={namesrv}"
        send(namesrv, *numbered(range(4)))
        table(source, to)
        create(namesrv, "orders", 1)
        with pytest.raises(LakeError, match="has no queue 1 of orders"):
            table(source, to)
        send(namesrv, {"id": 4})
        assert table(source, to, allow_gap=True).rows == 1


def remove_old_log(root: Path) -> None:
    """Delete the oldest half of the log, as retention does."""
    files = sorted((root / "commitlog").iterdir())
    for file in files[: len(files) // 2]:
        file.unlink()


class TestOptions:
    def test_options_of_the_source_reach_the_tasks_without_secrets(
        self, tmp_path: Path, namesrv: str
    ) -> None:
        send(namesrv, {"id": 1})
        file = tmp_path / "access"
        file.write_text("accessKey=alice\nsecretKey=canary-secret\n")
        file.chmod(0o600)
        given = {"credentialsFile": str(file), "group": "G", "retryTimeoutMs": "5000"}
        with OpenSources([f"namesrv={namesrv}"], given) as opened:
            (source,) = opened.found("orders", {})
            plan = opened.plan(
                source, "orders", BrokerProgress(), split_bytes=None, allow_gap=False
            )
        (part,) = plan.parts
        assert str(file).encode() in pickle.dumps(part)
        assert b"canary-secret" not in pickle.dumps(part)

    def test_wrong_options(self, tmp_path: Path, root: Path, to: Path) -> None:
        put(root, {"id": 1})
        with pytest.raises(ConfigError, match="no such option; the options are credentialsFile"):
            table("namesrv=h:1", to, source_options={"secretKey": "x"})
        with pytest.raises(ConfigError, match="applies to namesrv"):
            table(root, to, source_options={"group": "g"})
        with pytest.raises(ConfigError, match="retryTimeoutMs"):
            table("namesrv=h:1", to, source_options={"retryTimeoutMs": "soon"})
        with pytest.raises(ConfigError, match="must be PLACE or BROKER=PLACE"):
            table("namesrv=", to)

    def test_a_name_server_that_does_not_answer(self, to: Path) -> None:
        with pytest.raises(OutageError, match="name server cannot be reached"):
            table("namesrv=127.0.0.1:1", to, source_options={"retryTimeoutMs": "0"})


def test_messages_that_a_broker_hides_for_a_while(
    namesrv: str, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unclean stop, a broker may show less than before; the job waits for the rest."""
    send(namesrv, *numbered(range(6)))
    table(f"namesrv={namesrv}", to)
    hidden = 2
    end = Offsets.end

    async def fewer(self: Offsets, queue: object) -> int:
        nonlocal hidden
        hidden -= 1
        return await end(self, queue) - (1 if hidden >= 0 else 0)  # type: ignore[arg-type]

    monkeypatch.setattr(Offsets, "end", fewer)
    assert table(f"namesrv={namesrv}", to).messages == 0
    hidden = 10_000
    options = {"retryTimeoutMs": "0"}
    with pytest.raises(OutageError, match=r"ends at 2, but was read up to 3"):
        table(f"namesrv={namesrv}", to, source_options=options)
