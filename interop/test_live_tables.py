"""Tables from a cluster with a Java and a Firetrail broker: files first, then the brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from interop.servers import Servers
from pyspark.sql import SparkSession

from firetrail.client import Admin, Message, Producer, PullConsumer
from firetrail.errors import LakeError
from firetrail.pipeline.tables.runs.table_job import table
from firetrail.pipeline.tables.runs.table_result import TableResult
from firetrail.pipeline.tables.runs.verification import verify_table


@pytest.fixture(params=["v4", "v5"])
def java(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    yield Servers(request.param, tmp_path)


def no_spark() -> SparkSession:
    raise AssertionError("little work needs no Spark")


def run(source: Any, to: Path, **options: Any) -> TableResult:
    return table(no_spark, source, "orders", to, **options)


async def create(namesrv: str, brokers: int) -> None:
    async with Admin(namesrv) as admin:
        while len(await admin.masters()) < brokers:
            await asyncio.sleep(0.1)
        await admin.create_topic("orders", 2)


async def send(namesrv: str, first: int, end: int) -> None:
    """Send numbered messages to all queues in turn; large ones are compressed."""
    async with Producer(namesrv) as producer, PullConsumer(namesrv) as consumer:
        queues = await producer.queues("orders")
        last = {}
        for number in range(first, end):
            body = json.dumps({"id": number, "pad": "x" * (9000 if number % 5 == 0 else 9)})
            queue = queues[number % len(queues)]
            sent = await producer.send(Message("orders", body.encode()), queue=queue)
            last[queue] = sent.queue_offset
        await consumer.queues("orders")
        for queue, offset in last.items():
            while await consumer.offsets.end(queue) <= offset:
                await asyncio.sleep(0.05)


async def delete(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.delete_topic("orders")


def rows(to: Path) -> list[dict[str, Any]]:
    query = QueryBuilder().register("t", DeltaTable(str(to))).execute("select id, _broker from t")
    found: list[dict[str, Any]] = pa.table(query.read_all()).to_pylist()
    return found


def test_a_mixed_cluster(java: Servers, tmp_path: Path) -> None:
    to = tmp_path / "lake" / "orders"
    with java.name_server() as namesrv:
        source = f"namesrv={namesrv}"
        with java.broker(namesrv, "java-a"):
            asyncio.run(create(namesrv, 1))
            asyncio.run(send(namesrv, 0, 20))
        assert run(tmp_path / "java-a", to).rows == 20
        with java.broker(namesrv, "java-a"), java.our_broker(namesrv, "ours-b"):
            asyncio.run(create(namesrv, 2))
            asyncio.run(send(namesrv, 20, 60))
            done = run(source, to)
            assert (done.messages, done.lost, done.total_rows) == (40, 0, 60)
            assert run(source, to).messages == 0
            assert verify_table(source, to).ok
            found = rows(to)
            assert sorted(row["id"] for row in found) == list(range(60))
            assert {row["_broker"] for row in found} == {"java-a", "ours-b"}
            asyncio.run(delete(namesrv))
            with pytest.raises(LakeError, match="no longer has queues of orders"):
                run(source, to)
            asyncio.run(create(namesrv, 2))
            asyncio.run(send(namesrv, 0, 8))
            with pytest.raises(LakeError, match="its log or its topic was replaced"):
                run(source, to)
    assert len(rows(to)) == 60
