"""Brokers instead of files: the source reads from them, the sink and replays write to them.

Nothing is imported here: work on files needs none of it.
"""
