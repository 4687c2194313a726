"""Access control of servers: which permission each request requires, and who may send it."""
