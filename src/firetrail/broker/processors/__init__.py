"""Processors of the requests that producers and consumers send."""
