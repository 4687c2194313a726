"""TLS for every port and every client: certificates, sessions in memory, and names of users."""
