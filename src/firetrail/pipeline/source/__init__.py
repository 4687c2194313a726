"""The Spark data source ``rocketmq``: the log of a store as tables and streams."""

from firetrail.pipeline.source.datasource import RocketMqDataSource as DefaultSource
from firetrail.pipeline.source.datasource import register
from firetrail.pipeline.source.plan import explain

__all__ = ["DefaultSource", "explain", "register"]
