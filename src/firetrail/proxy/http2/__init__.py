"""The server side of HTTP/2 (RFC 9113), without sockets and without a clock.

The bytes of a client become calls of a listener, and its answers become bytes for the client. Only
the parts that gRPC needs are implemented: no push, no priorities, no upgrade from HTTP/1.1.
"""
