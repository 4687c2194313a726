"""The replay job: copies selected messages to a store or to brokers."""
