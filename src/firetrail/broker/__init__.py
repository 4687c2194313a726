"""What a request means: send, pull, hold, offsets, groups, delay, retry, transactions, admin."""
