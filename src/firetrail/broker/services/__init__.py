"""Services that run beside the processors: long polling, delays, clients, registration."""
