"""Read-only access to stores in any state, and the checks of ``fsck``."""
