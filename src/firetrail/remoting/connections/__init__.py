"""Connections, whose both sides send requests, and the client that opens them."""
