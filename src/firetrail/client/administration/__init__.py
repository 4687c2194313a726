"""The administration of a cluster: topics, groups, offsets and users."""
