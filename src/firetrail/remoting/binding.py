"""The error of a server whose port is in use."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from firetrail.errors import AddressInUseError
from firetrail.remoting.connection import address_text

FREE_IT = "stop the program that listens there, or choose another port"
"""What helps with every port."""


@contextmanager
def binding(host: str, port: int, remedy: str = FREE_IT, *, what: str = "port") -> Iterator[None]:
    """Raise AddressInUseError if an address cannot be bound because its port is in use.

    Args:
        host: The address.
        port: The port.
        remedy: What the user can do. Default: stop the other program, or choose another port.
        what: What the port is for, with the word port. Default: "port".
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        place = address_text((host, port))
        raise AddressInUseError(f"{place}: the {what} is in use; {remedy}") from None
