"""The index: messages by key and time."""
