"""The access of Spark tasks to brokers.

Options are shown in plans, event logs and the web interface, and are saved in checkpoints. So they
name a file, which every machine reads for itself, and never have a secret. Without a file, the
environment of the driver and of the executors counts.
"""

from firetrail.remoting.connections.access import Access


def access_in(path: str) -> Access | None:
    """Return the access that a file describes; None, for that of the environment, without a file.

    Raises:
        ConfigError: The file cannot be used.
    """
    return Access.from_file(path) if path else None
