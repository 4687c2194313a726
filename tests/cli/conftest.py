"""Running the command in this process."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from firetrail.cli import main as cli


class Told(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        (told,) = self.lines
        return told


Firetrail = Callable[..., Told]


@pytest.fixture
def firetrail(capsys: pytest.CaptureFixture[str]) -> Firetrail:
    """Call the command with some arguments."""

    def run(*arguments: object) -> Told:
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = int(exit.code or 0)
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return Told(code, told.out, told.err)

    return run
