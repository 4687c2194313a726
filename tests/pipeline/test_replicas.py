"""Spark reads the folder of a replica while it follows its master."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.broker.brokers import SMALL
from tests.client.clusters import WAIT_S, fill

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_reads_what_a_replica_has_copied(spark: SparkSession, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"ha_heartbeat_ms": 50, "sync_interval_ms": 50}
    with BackgroundBroker(store=SMALL) as master:
        asyncio.run(fill(master.namesrv, "T", 20))
        config = BrokerConfig(broker_id=1, master_address=master.address, **quick)
        slave = SMALL.replace(role=BrokerRole.SLAVE)
        with BackgroundBroker(tmp_path / "copy", config, slave) as replica:
            for sent in (20, 30):
                wait_for(replica, master.store.log_range[1])
                messages = spark.read.format("rocketmq").load(str(tmp_path / "copy"))
                bodies = sorted(int(row.body) for row in messages.select("body").collect())
                assert bodies == sorted([*range(20), *range(sent - 20)])
                asyncio.run(fill(master.namesrv, "T", 10))


def wait_for(replica: BackgroundBroker, end: int) -> None:
    """Wait until a replica has its master's log up to ``end`` in its queues."""
    deadline = SYSTEM.clock.monotonic() + WAIT_S
    while replica.store.log_range[1] < end or replica.store.dispatch_behind:
        assert SYSTEM.clock.monotonic() < deadline
        SYSTEM.clock.sleep_ms(10)
