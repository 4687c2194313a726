"""The Spark data source ``rocketmq``: the log of a store as tables and streams.

Nothing is imported here: every Spark worker process loads the modules, and needs only some of them.
"""
