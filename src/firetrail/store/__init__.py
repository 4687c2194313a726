"""The message store: commit log, consume queues, index, and what keeps them in step."""
