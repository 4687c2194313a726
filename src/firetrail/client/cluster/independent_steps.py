"""Independent steps: if one fails, the others still run."""

from collections.abc import Iterator
from contextlib import contextmanager

from firetrail.errors import FiretrailError


class StepFailures:
    """Notes the first failure of several steps, to be raised after all of them."""

    def __init__(self) -> None:
        self._first: OSError | FiretrailError | None = None
        self.may_pass = True
        """Whether all failures are temporary."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Run one step; if a broker does not answer or rejects a request, only note the error."""
        try:
            yield
        except (OSError, FiretrailError) as error:
            self._first = self._first or error
            is_temporary = error.retriable if isinstance(error, FiretrailError) else True
            self.may_pass = self.may_pass and is_temporary

    def raise_first(self) -> None:
        """Raise the first failure; return if there was none."""
        if self._first is not None:
            raise self._first
