"""The copied log: its growth on a replica, and the epochs of its masters."""
