"""The files of a store and of its broker, other than the log: their bytes and their names."""
