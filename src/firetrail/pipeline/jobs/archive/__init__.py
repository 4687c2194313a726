"""The archive job: copies every record of a store's log to a lake, exactly once."""
