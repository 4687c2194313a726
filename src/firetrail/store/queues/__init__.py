"""Consume queues: one per topic and queue id."""
