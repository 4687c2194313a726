"""Tables with a key: rows by bucket, and the newest version of each key."""
