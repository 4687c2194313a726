"""The bytes of a message store, and nothing else: buffers in, values out; no I/O, no clock.

One module per structure, each with its page in ``docs/format/``. All integers are big-endian and
signed, as Java's ``ByteBuffer`` writes them.
"""
