"""Repeated work, and reminders of errors that last."""
