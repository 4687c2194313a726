"""The file descriptors of a process: one half is for files, the rest for connections.

A store can have more queues than the process may have open files, and a server more clients. Each
gets by with its share, so that neither idle clients nor many queues can take all descriptors.
"""

FILES_LEAST = 64
FILES_MOST = 16_384
"""Every open file is also a mapping, and Linux allows a process 65,530 of them."""
PER_FILE = 2
"""Descriptors per open file: its own and that of its mapping."""
OTHERS = 256
"""Descriptors for everything else: log, index, replicas, the process's own requests."""
CONNECTIONS_LEAST = 64


def files_max(descriptors: int) -> int:
    """Return the limit of open files of queues.

    Args:
        descriptors: The number of descriptors that the process may have.
    """
    spare = max(OTHERS, descriptors // 2)
    return min(max((descriptors - spare) // PER_FILE, FILES_LEAST), FILES_MOST)


def connections_max(descriptors: int) -> int:
    """Return the limit of the connections of all servers of the process together.

    Args:
        descriptors: The number of descriptors that the process may have.
    """
    return max(descriptors - PER_FILE * files_max(descriptors) - OTHERS, CONNECTIONS_LEAST)
