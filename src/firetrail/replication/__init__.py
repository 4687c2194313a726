"""Replication of the commit log between a master and its replicas, compatible with RocketMQ's."""
