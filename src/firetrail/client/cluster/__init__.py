"""The cluster as all clients see it: routes, sessions, offsets, and repeated calls."""
