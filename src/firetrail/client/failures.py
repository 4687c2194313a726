"""Steps that do not depend on each other, of which some may fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from firetrail.errors import FiretrailError


class Failures:
    """What failed while the other steps were done all the same."""

    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Do one of the steps; if a broker does not answer or refuses, that is only noted."""
        try:
            yield
        except (OSError, FiretrailError) as error:
            self._first = self._first or error

    def raise_first(self) -> None:
        """Raise the first failure, if there was one."""
        if self._first is not None:
            raise self._first
