"""gRPC over HTTP/2: connections, calls and TLS."""
