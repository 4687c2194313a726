"""Puts: checks, drafts and appends of messages."""
