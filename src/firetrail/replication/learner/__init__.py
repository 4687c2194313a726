"""The replica of a Java master in controller mode."""
