"""The Spark sink ``rocketmq``: ``df.write.format("rocketmq")`` and ``writeStream``."""
