"""The values that records and settings consist of: numbers, hosts, ids, hashes and tags."""
