"""The command line: one command, ``firetrail``, with a module for each of its subcommands."""
