"""The Spark data source ``rocketmq``: the log of a store as tables and streams.

Nothing is imported here: Spark's workers load the modules anew, and need some of them only.
"""
