"""The entry point: it parses arguments, runs one subcommand and turns errors into messages."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import cast

from firetrail import __version__
from firetrail.cli.subcommand import Command, CommandParser, ExitCode
from firetrail.errors import FiretrailError, FormatError, StoreDamagedError
from firetrail.kernels import MISSING, PURE_WANTED, kernel_names

COMMANDS = {
    **dict.fromkeys(("up", "broker", "namesrv", "proxy"), "servers"),
    "replica": "replication",
    "cluster": "clusters",
    "check-config": "servers",
    **dict.fromkeys(("topic", "group", "send", "tail", "lag", "reset"), "clusters"),
    **dict.fromkeys(("user", "acl"), "users"),
    "settings": "clusters",
    **dict.fromkeys(("info", "dump", "query", "fsck", "rebuild", "backup", "salvage"), "stores"),
    "pipeline": "spark_jobs",
}
"""The subcommands in the order of ``--help``, and the folder with the module of each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``firetrail`` with ``argv`` (default: the process's arguments); return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(_needed(arguments))
    args = parser.parse_args(_spelled_out(arguments))
    if args.run is None:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except FiretrailError as error:
        damaged = isinstance(error, FormatError | StoreDamagedError)
        return _fail(error, ExitCode.PROBLEMS if damaged else ExitCode.USAGE)
    except BrokenPipeError:
        return _end_without_reader()
    except (OSError, MemoryError) as error:
        return _fail(error, ExitCode.USAGE)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _needed(arguments: Sequence[str]) -> Iterable[str]:
    """Return the subcommands whose modules are needed: importing all of them takes a second."""
    if arguments[:1] == ["--version"]:
        return ()
    return arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS


def _spelled_out(arguments: Sequence[str]) -> Sequence[str]:
    if arguments[:1] != ["replica"]:
        return arguments
    from firetrail.cli.replication import replica

    return replica.spelled_out(arguments)


def load_command(name: str) -> Command:
    """Import and return the module of a subcommand."""
    module = f"firetrail.cli.{COMMANDS[name]}.{name.replace('-', '_')}"
    return cast(Command, import_module(module))


def build_parser(names: Iterable[str] | None = None) -> argparse.ArgumentParser:
    """Return a parser of subcommands; it sets ``args.run`` to the chosen one's ``run``.

    Args:
        names: The subcommands. Default: all.
    """
    parser: argparse.ArgumentParser = CommandParser(
        prog="firetrail",
        description="RocketMQ in Python: serve its clients, inspect, check and rebuild its "
        "stores, and process them in bulk with Spark.",
        epilog="'firetrail COMMAND --help' describes a command and gives examples. Exit codes: "
        "0 success, 1 problems in a store, 2 wrong usage or failure, 130 interrupted by Ctrl-C, "
        "143 Spark job ended by SIGTERM. "
        "The help of send and of replica lists further ones.",
    )
    parser.add_argument("--version", action="version", version=version_line())
    parser.set_defaults(run=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in map(load_command, COMMANDS if names is None else names):
        command.add_parser(subparsers).set_defaults(run=command.run)
    return parser


def version_line() -> str:
    """Return the name, the version, and whether the kernels run compiled."""
    if PURE_WANTED:
        kernels = "pure Python, because FIRETRAIL_PURE=1 is set"
    elif MISSING:
        kernels = f"pure Python, slower: reinstall with a C compiler; not compiled: {_missing()}"
    else:
        kernels = "compiled"
    return f"firetrail {__version__} (kernels: {kernels})"


def _missing() -> str:
    """Name the kernels that are not compiled; "all" if none is."""
    if set(kernel_names()) <= set(MISSING):
        return "all"
    return ", ".join(name.removeprefix("firetrail.") for name in MISSING)


def _fail(error: Exception, code: ExitCode) -> ExitCode:
    print(f"firetrail: error: {_reason(error)}", file=sys.stderr)
    return code


def _reason(error: Exception) -> str:
    """Return the text of an error; for a failed operation on a file, its path and the reason."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename}: no such file or folder; check the path"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or "not enough memory"


def _end_without_reader() -> ExitCode:
    """End quietly if the reader of standard output exited, as in ``firetrail dump … | head``.

    The interpreter flushes standard output at exit and would report that this failed, so the rest
    of the output goes to the null device.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
