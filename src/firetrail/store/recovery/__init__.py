"""Recovery of an opening store: the end of its log, and queues and index derived again."""
