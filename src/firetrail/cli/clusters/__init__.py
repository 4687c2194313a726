"""Subcommands that ask and change running brokers and groups of brokers."""
