"""The message store: commit log, consume queues, index, and the threads that keep them in step."""
