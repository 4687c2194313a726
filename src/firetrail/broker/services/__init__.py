"""Services that run beside the processors: long polling, delays, transactions, registration."""
