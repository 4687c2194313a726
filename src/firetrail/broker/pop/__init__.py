"""POP consumption: messages that are invisible to others until they are acknowledged."""
