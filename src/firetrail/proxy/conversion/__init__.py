"""Messages between the gRPC schema and the form in which brokers store them."""
