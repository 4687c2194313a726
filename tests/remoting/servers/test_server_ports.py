"""The error of a server whose port is in use."""

import errno

import pytest

from firetrail.errors import AddressInUseError
from firetrail.remoting.servers.server_ports import binding


def test_a_port_in_use_is_named_with_a_remedy() -> None:
    in_use = OSError(errno.EADDRINUSE, "Address already in use")
    with pytest.raises(AddressInUseError) as caught, binding("::1", 8081):
        raise in_use
    expected = "the port is in use; stop the program that listens there, or choose another port"
    assert str(caught.value) == f"[::1]:8081: {expected}"
    with (
        pytest.raises(AddressInUseError, match=r"^h:1: the tea port is in use; wait$"),
        binding("h", 1, "wait", what="tea port"),
    ):
        raise in_use


def test_other_errors_stay_as_they_are() -> None:
    error = OSError(errno.EACCES, "Permission denied")
    with pytest.raises(OSError) as caught, binding("h", 1):
        raise error
    assert caught.value is error
