"""Storing messages: checks, drafts and appends."""
