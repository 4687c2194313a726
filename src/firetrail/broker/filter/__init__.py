"""Filters by tag and by SQL92 expression."""
