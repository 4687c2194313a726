"""Following a Java master in controller mode."""
