"""The group of brokers in etcd: its election, its lease and its in-sync set."""
