"""The producer: choice of queues, repeated sends, transactions."""
