"""Running the command in this process, and a cluster for it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
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
    def run(*arguments: object) -> CommandResult:
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = int(exit.code or 0)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return CommandResult(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster. Tests share it, so each one has topics and groups of its own."""
    folder = tmp_path_factory.mktemp("up")
    conf = folder / "broker.conf"
    conf.write_text("mapedFileSizeCommitLog=8388608\nmapedFileSizeConsumeQueue=20000\n")
    command = [sys.executable, "-m", "firetrail", "up", "--port", "0", "--namesrv-port", "0"]
    command += ["-c", str(conf), str(folder / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


@pytest.fixture
def ask(firetrail: Firetrail, namesrv: str) -> Any:
    """Call a command with the address of the cluster; it must not fail."""

    def run(command: str, *arguments: object) -> Any:
        result = firetrail(command, "--namesrv", namesrv, *arguments)
        assert result.code == 0, result.err
        return result

    return run
