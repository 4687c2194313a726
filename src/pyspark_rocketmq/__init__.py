"""The data source ``rocketmq`` for Spark, which looks into every package named ``pyspark_*``.

So ``spark.read.format("rocketmq")`` works wherever Firetrail is installed, without registration.
"""

from firetrail.pipeline.datasource import RocketMqDataSource as DefaultSource

__all__ = ["DefaultSource"]
