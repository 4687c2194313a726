"""The headers and bodies of administration."""
