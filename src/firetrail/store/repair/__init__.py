"""Rebuilding, repairing, salvaging and copying stores."""
