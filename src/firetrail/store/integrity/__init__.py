"""Damage found in an open store, and its repair from another broker."""
