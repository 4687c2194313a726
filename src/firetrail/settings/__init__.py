"""Tables of settings: kinds of value, and how a table is read from a configuration file."""
