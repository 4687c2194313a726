"""The commit log: appending, flushing and reading records."""
