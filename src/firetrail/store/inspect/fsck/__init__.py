"""The check of a store: log, consume queues, index, checkpoint, and whether they agree.

It takes one pass over the log. Units and index entries are derived from each batch of records with
the functions of the live dispatcher and compared with the files byte by byte. Single units and
entries are examined only where the bytes differ.
"""
