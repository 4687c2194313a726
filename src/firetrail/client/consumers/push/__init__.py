"""The push consumer: its queues, listeners, commits and offsets."""
