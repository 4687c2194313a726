"""The words that errors about damaged messages share, in stores and at brokers."""

SKIP_DAMAGED = "read with mode=permissive to skip damaged records"
"""The last part of the remedy."""
