"""The rebuild job: consume queues and index from the log alone."""
