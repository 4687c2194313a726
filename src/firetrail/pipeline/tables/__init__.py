"""Topics as tables: the decoded messages of a topic as a Delta table, each exactly once."""
