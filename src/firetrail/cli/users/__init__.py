"""Subcommands that list and change users and their policies."""
