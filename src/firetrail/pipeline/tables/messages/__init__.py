"""Messages of a table: their sources, the names of brokers, and their progress."""
