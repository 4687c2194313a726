"""The entry point: parses arguments, runs one subcommand, turns errors into messages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from firetrail import __version__
from firetrail.cli import (
    backup,
    broker,
    dump,
    fsck,
    group,
    info,
    lag,
    namesrv,
    pipeline,
    query,
    rebuild,
    reset,
    salvage,
    send,
    tail,
    topic,
    up,
)
from firetrail.cli.command import Command, ExitCode
from firetrail.errors import FiretrailError, FormatError, StoreDamagedError
from firetrail.kernels import MISSING, PURE_WANTED, kernel_names

COMMANDS: tuple[Command, ...] = (
    *(up, broker, namesrv),
    *(topic, group, send, tail, lag, reset),
    *(info, dump, query, fsck, rebuild, backup, salvage),
    pipeline,
)
"""The subcommands, in the order in which help lists them: servers, a cluster, a store, Spark."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``firetrail`` with ``argv`` (the process's own arguments if None); the exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
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
        return _reader_gone()
    except (OSError, MemoryError) as error:
        return _fail(error, ExitCode.USAGE)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command; ``args.run`` is the chosen subcommand's ``run``."""
    parser = argparse.ArgumentParser(
        prog="firetrail",
        description="RocketMQ in Python: look into, check and rebuild its stores, serve its "
        "clients, and bulk work with Spark.",
    )
    parser.add_argument("--version", action="version", version=version_line())
    parser.set_defaults(run=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers).set_defaults(run=command.run)
    return parser


def version_line() -> str:
    """Name, version, and whether the kernels run compiled."""
    if PURE_WANTED:
        kernels = "pure Python, because FIRETRAIL_PURE=1 is set"
    elif MISSING:
        kernels = f"pure Python, slower: reinstall with a C compiler; not compiled: {_missing()}"
    else:
        kernels = "compiled"
    return f"firetrail {__version__} (kernels: {kernels})"


def _missing() -> str:
    """The kernels that are not compiled, by name if there are others that are."""
    if set(kernel_names()) <= set(MISSING):
        return "all"
    return ", ".join(name.removeprefix("firetrail.") for name in MISSING)


def _fail(error: Exception, code: ExitCode) -> ExitCode:
    print(f"firetrail: error: {str(error) or 'not enough memory'}", file=sys.stderr)
    return code


def _reader_gone() -> ExitCode:
    """End quietly when whatever read standard output has left, as in ``firetrail dump … | head``.

    What is still buffered has nowhere to go; without this, the interpreter would complain about it
    on the way out.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
