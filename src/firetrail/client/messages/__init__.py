"""Messages as clients send and receive them."""
