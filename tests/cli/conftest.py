"""Running the command in this process."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from firetrail.cli import main as cli


class CommandResult(NamedTuple):
    """The exit code of a command and its output."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects on standard output, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        (only,) = self.lines
        return only


Firetrail = Callable[..., CommandResult]


@pytest.fixture
def firetrail(capsys: pytest.CaptureFixture[str]) -> Firetrail:
    """Call the command with some arguments."""

    def run(*arguments: object) -> CommandResult:
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = int(exit.code or 0)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return CommandResult(code, captured.out, captured.err)

    return run
