"""The role of a broker: its start, its terms, failover, and changes by command."""
