"""Databases: one topic as many tables, which are written together."""
