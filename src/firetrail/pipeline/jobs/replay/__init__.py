"""The replay job: chosen messages, copied to a store or to brokers."""
