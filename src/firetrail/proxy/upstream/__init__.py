"""The brokers behind a proxy, in the same process or in a cluster, and its own clients."""
