"""Dispatch: deriving queues and index from the log, and waking readers."""
