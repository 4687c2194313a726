"""The replica: the check before it follows a master, its state, its journal, and the rewind."""
