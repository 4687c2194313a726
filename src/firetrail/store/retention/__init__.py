"""Periodic work on an open store: syncs of queues, the watermark, deletion of old files."""
