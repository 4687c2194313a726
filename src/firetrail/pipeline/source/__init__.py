"""The Spark data source ``rocketmq``: the log of a store as tables and streams."""
