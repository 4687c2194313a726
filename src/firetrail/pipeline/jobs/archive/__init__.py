"""The archive job: a store's log in a lake, exactly once."""
