"""Subcommands that show and change the roles of brokers, and what those commands share."""
