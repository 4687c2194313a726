"""Reads of an open store: messages, records, and lookups in queues."""
