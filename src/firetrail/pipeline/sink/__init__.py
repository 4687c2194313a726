"""The Spark sink ``rocketmq``: ``df.write.format("rocketmq")`` and ``writeStream``."""

from firetrail.pipeline.sink.writers import batch_writer, stream_writer

__all__ = ["batch_writer", "stream_writer"]
