"""A broker as slave: it follows a master and serves what it has copied."""
