"""Authentication and authorization: credentials, signatures, users, policies and decisions."""
