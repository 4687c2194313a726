"""The accounts of RocketMQ's ACL 1.0: their files, their rules, and the requests about them."""
