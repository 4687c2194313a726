"""The work that a connection has given its owner, and that is not done yet."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backlog:
    """Counts the work that the owner of a connection has to do for the peer.

    The connection adds bytes as they arrive; everything else is the owner's.
    """

    requests: int = 0
    """Requests that are not handled yet."""
    bytes: int = 0
    """Bytes that arrived since no request was left."""
    deferred_bytes: int = 0
    """Bytes of requests that wait until the peer reads."""
