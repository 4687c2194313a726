"""The rebuild job: derives consume queues and index from the log alone."""
