"""When work is repeated, and when a lasting error is logged again."""
