"""Subcommands that read, check and repair the files of a store."""
