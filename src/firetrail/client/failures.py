"""Independent steps: if one fails, the others still run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from firetrail.errors import FiretrailError


class Failures:
    """Notes the first failure of several steps, to be raised after all of them."""

    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Run one step; if a broker does not answer or rejects a request, only note the error."""
        try:
            yield
        except (OSError, FiretrailError) as error:
            self._first = self._first or error

    def raise_first(self) -> None:
        """Raise the first failure; return if there was none."""
        if self._first is not None:
            raise self._first
