"""A replica of a running broker, whose copy Spark analyses while it grows.

    .venv/bin/python examples/replica.py [HOST:PORT [DIR]]

The master may be any broker of RocketMQ 4.9 or 5.x, or of Firetrail. Without an address, the
program starts one of its own. The master sends its log once; Spark reads only the copy.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firetrail.broker import BackgroundBroker
from firetrail.client import Message, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def following(master: str, folder: Path) -> Iterator[None]:
    """Run ``firetrail replica`` on a folder; the block begins when it has caught up."""
    command = [sys.executable, "-m", "firetrail", "replica", str(folder), "--of", master]
    options = ["--port", "0", "--json", "--log-level", "error"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                seen: dict[str, Any] = json.loads(line)
                if seen.get("error"):
                    print(f"{seen['state']}: {seen['error']}")
                if seen.get("caught_up"):
                    print(f"the copy has all {seen['log_end']} bytes of the master's log")
                    break
            else:
                raise SystemExit("the master cannot be followed")
            yield
        finally:
            process.terminate()


def report(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Print the number of messages and bytes of each topic; return the numbers."""
    messages = spark.read.format("rocketmq").load(str(folder))
    by_topic = messages.groupBy("topic").agg({"*": "count", "size": "sum"}).orderBy("topic")
    rows = by_topic.collect()
    for topic, *figures in rows:
        numbers = dict(zip(by_topic.columns[1:], figures, strict=True))
        print(f"{topic:<20} {numbers['count(1)']:>8} messages {numbers['sum(size)']:>10} bytes")
    return {row["topic"]: row["count(1)"] for row in rows}


async def sell(namesrv: str, count: int) -> None:
    """Send orders to the master."""
    async with Producer(namesrv, "shop") as producer:
        for number in range(count):
            topic = "orders" if number % 4 else "payments"
            await producer.send(Message(topic, b'{"order": %d}' % number, keys=[f"o-{number}"]))


def main(arguments: list[str]) -> None:
    """Follow the master that was given, or an own one."""
    from firetrail.pipeline import session

    with ExitStack() as stack:
        if arguments:
            master = arguments[0]
        else:
            broker = stack.enter_context(BackgroundBroker())
            asyncio.run(sell(broker.namesrv, 100))
            master = broker.address
        if len(arguments) > 1:
            folder = Path(arguments[1])
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "copy"
        stack.enter_context(following(master, folder))
        spark = session("local[2]")
        stack.callback(spark.stop)
        report(spark, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
