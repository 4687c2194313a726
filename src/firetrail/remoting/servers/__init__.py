"""The server side: ports, limits for clients, the turn of each request, and refusals."""
