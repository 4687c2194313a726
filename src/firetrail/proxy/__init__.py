"""The service for clients of RocketMQ 5: gRPC in front of brokers.

The transport (HTTP/2, gRPC) and the meaning of the calls know each other only through ``call``.
"""
