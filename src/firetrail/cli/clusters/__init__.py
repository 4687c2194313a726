"""Subcommands that ask and change running brokers, groups of brokers, and replicas."""
