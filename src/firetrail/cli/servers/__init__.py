"""Subcommands that run servers, and the options, logs and signals of a server process."""
