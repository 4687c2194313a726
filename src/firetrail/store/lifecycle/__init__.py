"""Opening, running and closing a store: locks, recovery, housekeeping, retention."""
