"""``firetrail check-config``: check a file of settings before a server is started with it."""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from firetrail.broker import unsupported
from firetrail.broker.broker_conf_file import load_entries
from firetrail.cli.common import add_plain_parser
from firetrail.cli.output import counted
from firetrail.cli.servers import server_command
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import ConfigError, UnsupportedError
from firetrail.namesrv import NameServerConfig
from firetrail.proxy.proxy_config import ProxyConfig
from firetrail.settings.file_changes import ConfEntries

DESCRIPTION = """\
Check the file of settings of a broker, a name server or a proxy, as the start of the server does.
Nothing is started or changed.

Print every error, and remarks about keys that have no effect.

Exit codes:
  0  a server can be started with the file; there may be remarks
  1  the file has errors: a value that is not allowed, a misspelt key, a feature that is missing
  2  the file cannot be read"""
EXAMPLES = """\
  firetrail check-config broker.conf
  firetrail check-config namesrv.conf --for namesrv --json"""

Load = Callable[[ConfEntries], Iterable[object]]


def _load_broker(entries: ConfEntries) -> Iterable[object]:
    loaded = load_entries(entries)
    unsupported.check(loaded.refused, ())
    return loaded.remarks


LOADS: dict[str, Load] = {
    "broker": _load_broker,
    "namesrv": lambda entries: NameServerConfig.from_entries(entries)[1],
    "proxy": lambda entries: ProxyConfig.from_entries(entries)[1],
}
"""Functions that read the entries of a file as a server does, and return remarks."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = add_plain_parser(
        subparsers, "check-config", "check a file of settings", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the file, such as broker.conf")
    parser.add_argument(
        "--for",
        dest="server",
        choices=LOADS,
        default="broker",
        help="the server that reads the file (default: %(default)s)",
    )
    server_command.add_json(parser, "print a JSON object: file, ok, errors, remarks")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Check the file, and print the errors."""
    errors: list[str] = []
    remarks: list[str] = []
    try:
        entries = server_command.read_conf(args.file)
    except ConfigError as error:
        errors = [str(error)]
    else:
        errors, remarks = _check(entries, LOADS[args.server])
    if args.json:
        found = {"file": str(args.file), "ok": not errors, "errors": errors, "remarks": remarks}
        print(json.dumps(found))
    else:
        lines = [*(f"error: {error}" for error in errors), *(f"remark: {each}" for each in remarks)]
        result = counted(len(errors), "error") if errors else "ok"
        print("\n".join([*lines, f"{args.file}: {result}"]))
    return ExitCode.PROBLEMS if errors else ExitCode.OK


def _check(entries: ConfEntries, load: Load) -> tuple[list[str], list[str]]:
    """Return all errors and remarks; a server stops at the first error, this omits its key."""
    errors: list[str] = []
    while True:
        try:
            return errors, [str(remark) for remark in load(entries)]
        except UnsupportedError as error:
            errors.append(str(error))
            entries = {k: v for k, v in entries.items() if k not in unsupported.NAMES}
        except ConfigError as error:
            errors.append(str(error))
            if error.key not in entries:  # a rule between settings: the others cannot be checked
                return errors, []
            entries = {key: entry for key, entry in entries.items() if key != error.key}
