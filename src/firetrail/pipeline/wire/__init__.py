"""Brokers instead of files: the source reads from them, the sink and replays write to them.

Nothing is imported here, because work on files does not need these modules.
"""
