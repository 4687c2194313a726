"""RocketMQ's gRPC schema: the published ``.proto`` files, and the classes of their messages."""
