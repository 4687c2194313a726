"""``firetrail acl``: the policies of users on brokers with access control."""

import argparse
import json
from typing import NamedTuple

from firetrail.auth.policies import SUBJECT_PREFIX, Decision, PolicyType
from firetrail.auth.resources import Action
from firetrail.cli import running_cluster
from firetrail.cli.output import say, table
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.cli.users import user_directory
from firetrail.cli.users.user_directory import UserDirectory

DESCRIPTION = f"""\
List and show what users may do, allow or deny something, or delete it, on all brokers.

A resource is Topic:NAME, Topic:PREFIX*, Topic:* (the same with Group and Cluster), or * for
everything. Actions are {", ".join(Action)}. The most specific entry
decides; without one, the request is denied. The user of the request, FIRETRAIL_ACCESS_KEY, has to
be a super user."""
EXAMPLES = """\
  firetrail acl list
  firetrail acl create shop 'Topic:orders*' Group:shop --actions Pub,Sub
  firetrail acl create shop Topic:orders-secret --actions All --deny
  firetrail acl update shop Topic:invoices --actions Pub --source 10.1.0.0/16
  firetrail acl delete shop Topic:invoices
  firetrail acl delete shop --all"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "acl", "list, show and change what users may do", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    user_directory.add_action(actions, "list", "list the entries of all policies", user=False)
    user_directory.add_action(actions, "show", "show the entries of a user's policies")
    for name, summary in (
        (
            "create",
            "allow or deny actions on resources; an entry for the same resource is replaced",
        ),
        ("update", "the same as create"),
    ):
        _add_entry_arguments(user_directory.add_action(actions, name, summary))
    delete = user_directory.add_action(actions, "delete", "delete entries of a user's policies")
    delete.add_argument("resource", metavar="RESOURCE", nargs="?", help="resource of the entry")
    delete.add_argument("--all", action="store_true", help="delete all entries of the user")
    delete.add_argument(
        "--default", action="store_true", help="only of the policy Default (default: of both)"
    )
    delete.set_defaults(parser=delete)
    return parser


def _add_entry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "resources", metavar="RESOURCE", nargs="+", help="what the user gets access to"
    )
    parser.add_argument(
        "--actions",
        metavar="LIST",
        required=True,
        help=f"the actions, separated by commas: {', '.join(Action)}",
    )
    parser.add_argument("--deny", action="store_true", help="deny the actions (default: allow)")
    parser.add_argument(
        "--source",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="address or network of clients that the entries are for; may be repeated "
        "(default: all)",
    )
    parser.add_argument(
        "--default",
        action="store_true",
        help="change the policy Default, which is used if no entry of Custom applies "
        "(default: Custom)",
    )


def run(args: argparse.Namespace) -> ExitCode:
    """Run the action."""
    if args.action == "delete" and bool(args.resource) == args.all:
        args.parser.error("say what to delete: a resource, or --all")
    user_directory.run(args, lambda directory: _run(args, directory))
    return ExitCode.OK


async def _run(args: argparse.Namespace, directory: UserDirectory) -> None:
    if args.action == "list":
        await print_entries(directory, None, as_json=args.json)
        return
    await directory.known(args.user)
    if args.action == "show":
        await print_entries(directory, args.user, as_json=args.json)
    elif args.action == "delete":
        policy_type = PolicyType.DEFAULT if args.default else None
        await directory.users.delete_acl(
            args.user, resource=args.resource, policy_type=policy_type, **directory.where
        )
        _done(args, "deleted", args.resource or "all entries")
    else:
        decision = Decision.DENY if args.deny else Decision.ALLOW
        actions = [word for word in args.actions.split(",") if word]
        await directory.users.set_acl(
            args.user,
            args.resources,
            actions,
            decision=decision,
            sources=args.source,
            policy_type=PolicyType.DEFAULT if args.default else PolicyType.CUSTOM,
            **directory.where,
        )
        _done(args, decision.lower(), f"{','.join(actions)} on {', '.join(args.resources)}")


def _done(args: argparse.Namespace, verb: str, what: str) -> None:
    found = {"user": args.user, "action": args.action}
    print(json.dumps(found) if args.json else f"{args.user}: {verb} {what}")


class EntryRow(NamedTuple):
    """An entry of a policy, for output."""

    user: str
    policy: str
    resource: str
    actions: tuple[str, ...]
    decision: str
    sources: tuple[str, ...]


async def entries_of(directory: UserDirectory, user: str | None) -> dict[EntryRow, list[str]]:
    """Return the entries of a user's policies, or of all users', with the brokers that have them.

    Args:
        directory: The users.
        user: The name of a user; None for all.
    """
    found: dict[EntryRow, list[str]] = {}
    for broker, acls in (await directory.users.acls(**directory.where)).items():
        for acl in acls:
            name = acl.subject.removeprefix(SUBJECT_PREFIX)
            for policy in acl.policies if user in (None, name) else ():
                for entry in policy.entries:
                    actions, sources = tuple(entry.actions), tuple(entry.source_ips or ())
                    what = (entry.resource, actions, entry.decision, sources)
                    found.setdefault(EntryRow(name, policy.type, *what), []).append(broker)
    return found


def json_entry(row: EntryRow, brokers: list[str]) -> dict[str, object]:
    """Return an entry for JSON."""
    return {**row._asdict(), "brokers": [broker for broker in brokers if broker]}


async def print_entries(directory: UserDirectory, user: str | None, *, as_json: bool) -> None:
    """Print the entries of policies. Those that are the same on several brokers share a line.

    Args:
        directory: The users.
        user: The name of a user; None for all.
        as_json: Whether to print a list of JSON objects instead of a table.
    """
    found = await entries_of(directory, user)
    if as_json:
        print(json.dumps([json_entry(*each) for each in found.items()]))
    elif found:
        heads = ("USER", "POLICY", "RESOURCE", "ACTIONS", "DECISION", "SOURCES", "BROKERS")
        lines = [
            (
                *row[:3],
                ",".join(row.actions),
                row.decision,
                ",".join(row.sources) or "all",
                ", ".join(brokers),
            )
            for row, brokers in found.items()
        ]
        print("\n".join(table(heads, lines)))
    else:
        say(f"{directory.place}: there are no entries{f' for {user}' if user else ''}")
