"""The command itself: its version, its exit codes, and errors as messages."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from firetrail import __version__
from firetrail.cli import main as cli
from firetrail.cli import run_command, version_line
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import FormatError, NotAStoreError, StoreDamagedError
from firetrail.kernels import kernel_names

COMMAND = [sys.executable, "-m", "firetrail"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The command with one subcommand, ``fail``, which raises ``failing.error`` if there is one."""
    state = SimpleNamespace(error=None)

    def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
        return subparsers.add_parser("fail", help="fail")

    def run(args: argparse.Namespace) -> ExitCode:
        if state.error is not None:
            raise state.error
        return ExitCode.OK

    command = SimpleNamespace(add_parser=add_parser, run=run)
    monkeypatch.setattr(cli, "COMMANDS", ("fail",))
    monkeypatch.setattr(cli, "load_command", lambda name: command)
    return state


def test_every_module_of_a_command_is_a_command() -> None:
    folder = Path(cli.__file__).parent
    found = {
        path.stem.replace("_", "-"): path.parent.name
        for path in folder.glob("*/*.py")
        if re.search(r"^def add_parser\(subparsers:", path.read_text("utf-8"), re.MULTILINE)
    }
    assert found == cli.COMMANDS


def test_a_command_imports_no_other() -> None:
    """The modules of servers take most of a second, which scripts would notice."""
    script = """
import sys
from contextlib import suppress
from firetrail.cli.main import main
with suppress(SystemExit):
    main(sys.argv[1:])
print(*(name for name in sys.modules if name.startswith("firetrail.")), file=sys.stderr)
"""

    def imported(*arguments: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
        )
        return set(done.stderr.split())

    assert "firetrail.cli.clusters.send" not in imported("--version")
    assert "firetrail.broker" not in imported("send", "--help")
    assert "firetrail.broker.broker" not in imported("fsck", "--help")
    assert "firetrail.broker.broker" in imported("up", "--help")


SLOWER = "pure Python, slower: reinstall with a C compiler; not compiled: "


@pytest.mark.parametrize(
    ("missing", "pure", "kernels"),
    [
        ((), False, "compiled"),
        ((), True, "pure Python, because FIRETRAIL_PURE=1 is set"),
        (("firetrail.format.kernels.scan",), False, f"{SLOWER}format.kernels.scan"),
        (kernel_names(), False, f"{SLOWER}all"),
    ],
)
def test_version_tells_the_state_of_the_kernels(
    missing: tuple[str, ...],
    pure: bool,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "MISSING", missing)
    monkeypatch.setattr(cli, "PURE_WANTED", pure)
    with pytest.raises(SystemExit) as exit:
        cli.main(["--version"])
    assert exit.value.code == ExitCode.OK
    assert (
        " ".join(capsys.readouterr().out.split()) == f"firetrail {__version__} (kernels: {kernels})"
    )


def test_version_of_an_uncompiled_run() -> None:
    output = subprocess.run(
        [*COMMAND, "--version"],
        env=os.environ | {"FIRETRAIL_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "(kernels: pure Python" in output


def test_without_a_command_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == ExitCode.USAGE
    assert "usage: firetrail" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["no-such-command"])
    assert exit.value.code == ExitCode.USAGE


def test_success_exits_with_0(failing: SimpleNamespace) -> None:
    assert cli.main(["fail"]) == ExitCode.OK


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotAStoreError("data: not a store"), ExitCode.USAGE),
        (FormatError("size", 4, "is 0"), ExitCode.PROBLEMS),
        (StoreDamagedError("log", 4, 4, "bad magic", "run fsck"), ExitCode.PROBLEMS),
    ],
)
def test_an_error_is_one_line(
    error: Exception, code: ExitCode, failing: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    failing.error = error
    assert cli.main(["fail"]) == code
    assert capsys.readouterr().err == f"firetrail: error: {error}\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file", "b.conf"), "b.conf: no such file or folder; check"),
        (PermissionError(13, "Permission denied", "data"), "data: Permission denied\n"),
        (OSError("the pool is empty"), "the pool is empty\n"),
        (MemoryError("no memory to map a file"), "no memory to map a file\n"),
        (MemoryError(), "not enough memory\n"),
    ],
)
def test_a_failed_operation_names_the_file_or_the_reason(
    error: Exception, said: str, failing: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    failing.error = error
    assert cli.main(["fail"]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith(f"firetrail: error: {said}")


def test_a_bug_keeps_its_traceback(failing: SimpleNamespace) -> None:
    failing.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_an_interrupt_exits_with_130(failing: SimpleNamespace) -> None:
    failing.error = KeyboardInterrupt()
    assert cli.main(["fail"]) == ExitCode.INTERRUPTED


def test_the_module_runs_as_a_program_without_a_warning() -> None:
    """Python warns if the package has imported the module that it is about to run."""
    done = subprocess.run(
        [sys.executable, "-m", "firetrail.cli.main", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.split()[0], done.stderr) == ("firetrail", "")


def test_the_package_offers_the_command_and_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([]) == ExitCode.USAGE
    assert "usage: firetrail" in capsys.readouterr().err
    assert version_line().startswith(f"firetrail {__version__} (kernels: ")


def test_reader_that_leaves_early() -> None:
    """As in ``firetrail dump STORE --json | head``: no complaint, whatever was still buffered."""
    script = """
import sys
from types import SimpleNamespace
from firetrail.cli import main as cli
def run(args):
    for n in range(100_000):
        print("line", n)
    return 0
flood = SimpleNamespace(add_parser=lambda parsers: parsers.add_parser("flood"), run=run)
cli.COMMANDS = ("flood",)
cli.load_command = lambda name: flood
sys.exit(cli.main(["flood"]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == ExitCode.OK
