"""The audit log: its events, its lines, and its files."""
