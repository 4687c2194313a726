"""Planned changes of the master, for pairs and groups, and those that were interrupted."""
