"""``firetrail replica replace``: free the number of a damaged member for an empty store."""

import argparse
from contextlib import closing
from pathlib import Path

from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.replica.replacement import Replacement
from firetrail.cli import common
from firetrail.cli.servers import server_command
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import ConfigError
from firetrail.store.root.folder import lock_owner
from firetrail.system import SYSTEM

DESCRIPTION = """\
Replace the store of a member of a group with automatic failover, because it is damaged, lost, or
lacks what the master has deleted. Run this on the machine of the member, after its broker was
stopped: the command waits until the group no longer counts on the member, moves its store
aside, and lets the group accept an empty store with the same number. Start the broker afterwards;
it copies everything from the master.

Without a store, for example on a new machine, only the number is freed."""
EXAMPLES = "  firetrail replica replace data -c broker.conf"


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        actions, "replace", "let a group accept an empty store", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("store", metavar="STORE", type=Path, help="folder of the member's store")
    parser.add_argument(
        "-c",
        "--conf",
        metavar="FILE",
        type=Path,
        required=True,
        help="the broker.conf of the member, with ha_member and etcd_endpoints",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Replace the store."""
    config = load_entries(server_command.read_conf(args.conf)).broker
    owner = lock_owner(SYSTEM, args.store) if args.store.is_dir() else None
    if owner is not None:
        raise ConfigError("STORE", str(args.store), f"stop its broker first: process {owner}")
    with closing(Replacement(SYSTEM, config, args.store)) as replacement:
        replacement.check()
        print(f"waiting until the group does not count on member {config.ha_member}", flush=True)
        kept = replacement.run()
    if kept is not None:
        print(f"the store is kept in {kept}")
    print(f"start the broker of member {config.ha_member}: it copies everything from the master")
    return ExitCode.OK
