"""Jobs on a table: runs, dry runs, retries, checks, and what they publish."""
