"""Following a master: the check before, the state and the journal, and rewinding."""
