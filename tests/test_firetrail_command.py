"""The entry of the ``firetrail`` command: Ctrl-C while it imports, and the arguments."""

import subprocess
import sys

import pytest

import firetrail_command
from firetrail.cli.subcommand import ExitCode

INTERRUPTED_IMPORT = """\
import sys


class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupt())
{start}
"""
SCRIPT = """\
from firetrail_command import main

sys.exit(main())
"""
MODULE = """\
from runpy import run_module

run_module("firetrail", run_name="__main__")  # as python -m does, which imports the package first
"""


@pytest.mark.parametrize(
    ("name", "start"),
    [("firetrail", SCRIPT), ("firetrail.cli.main", SCRIPT), ("firetrail.cli.main", MODULE)],
    ids=["script-package", "script-command", "module-command"],
)
def test_an_interrupt_during_an_import_ends_without_a_traceback(name: str, start: str) -> None:
    program = INTERRUPTED_IMPORT.format(name=name, start=start)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


def test_the_exit_code_is_that_of_the_command() -> None:
    assert firetrail_command.INTERRUPTED == ExitCode.INTERRUPTED


def test_the_command_gets_the_arguments_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["firetrail"])
    assert firetrail_command.main() == ExitCode.USAGE
    assert "usage: firetrail" in capsys.readouterr().err
