"""The calls of consumers: receives, receipts and their renewal."""
