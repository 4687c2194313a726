"""The words that errors about damaged messages share, whichever place they are read from."""

SKIP_DAMAGED = "read with mode=permissive to skip damaged records"
"""The last part of the remedy."""
