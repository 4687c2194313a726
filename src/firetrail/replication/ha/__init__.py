"""The HA connection of master and replica: sessions without I/O, sockets and threads."""
