"""The check of a store: log, consume queues, index, checkpoint, and their agreement.

One pass over the log. What follows from each batch of records, units and index entries, is derived
with the functions of the live dispatcher and compared with the files byte by byte; only where the
bytes differ are single units and entries looked at.
"""
