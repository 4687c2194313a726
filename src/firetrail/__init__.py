"""RocketMQ's message store in Python."""

__version__ = "0.1.0"
