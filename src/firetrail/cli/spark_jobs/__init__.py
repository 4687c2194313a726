"""Subcommands that start Spark jobs."""
