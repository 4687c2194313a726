"""``firetrail user``: the users of brokers with access control."""

from __future__ import annotations

import argparse
import json
from typing import Any, NamedTuple

from firetrail.access.user_bodies import UserInfo
from firetrail.auth.policies import UserStatus, UserType
from firetrail.cli import running_cluster
from firetrail.cli.output import say, table
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.cli.users import passwords, user_directory
from firetrail.cli.users.acl import entries_of, json_entry, print_entries
from firetrail.cli.users.user_directory import UserDirectory

DESCRIPTION = """\
List and show users, create, change or delete a user, on all brokers: each has its own users.

The user of the request, FIRETRAIL_ACCESS_KEY, has to be a super user. A new password is read from a
file, from FIRETRAIL_NEW_PASSWORD or from the terminal. --store changes the users in the folder of a
stopped broker, for example to create the first one."""
EXAMPLES = """\
  firetrail user list
  firetrail user create shop
  firetrail user create admin --super --store data
  firetrail user update shop --password-file new-password
  firetrail user update shop --disable
  firetrail user delete shop"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "user", "list, show, create, change and delete users", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    user_directory.add_action(actions, "list", "list all users", user=False)
    user_directory.add_action(actions, "show", "show a user and its policies")
    create = user_directory.add_action(actions, "create", "create a user on every broker")
    create.add_argument(
        "--super",
        action="store_true",
        help="the user may do everything (default: what its policies allow)",
    )
    passwords.add_file_argument(create)
    update = user_directory.add_action(actions, "update", "change a user on every broker")
    update.add_argument(
        "--password",
        action="store_true",
        help=f"change the password: it is read from ${passwords.VARIABLE}, or asked for",
    )
    passwords.add_file_argument(update)
    kinds = update.add_mutually_exclusive_group()
    kinds.add_argument("--super", action="store_true", help="let the user do everything")
    kinds.add_argument(
        "--normal", action="store_true", help="let the user do what its policies allow"
    )
    statuses = update.add_mutually_exclusive_group()
    statuses.add_argument("--enable", action="store_true", help="let the user connect")
    statuses.add_argument("--disable", action="store_true", help="do not let the user connect")
    update.set_defaults(parser=update)
    user_directory.add_action(actions, "delete", "delete a user and its policies on every broker")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the action."""
    changes = _changes(args)
    user_directory.run(args, lambda directory: _run(args, directory, changes))
    return ExitCode.OK


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the user to create or to change; a password is asked for before anything is sent."""
    if args.action == "create":
        return {
            "password": passwords.new_password(args.password_file, args.user),
            "user_type": UserType.SUPER if args.super else UserType.NORMAL,
        }
    if args.action != "update":
        return {}
    changes: dict[str, Any] = {}
    if args.password or args.password_file is not None:
        changes["password"] = passwords.new_password(args.password_file, args.user)
    if args.super or args.normal:
        changes["user_type"] = UserType.SUPER if args.super else UserType.NORMAL
    if args.enable or args.disable:
        changes["status"] = UserStatus.ENABLED if args.enable else UserStatus.DISABLED
    if not changes:
        args.parser.error("say what to change: --password, --super, --normal, --enable, --disable")
    return changes


async def _run(args: argparse.Namespace, directory: UserDirectory, changes: dict[str, Any]) -> None:
    users, where = directory.users, directory.where
    if args.action == "list":
        await _list(args, directory)
    elif args.action == "show":
        await _show(args, directory)
    elif args.action == "create":
        await users.create_user(args.user, **changes, **where)
        _done(args, "created")
        if changes["user_type"] is UserType.NORMAL:
            say(f"{args.user} has no permissions yet: 'firetrail acl create {args.user} …'")
    elif args.action == "update":
        await directory.known(args.user)
        await users.update_user(args.user, **changes, **where)
        _done(args, "changed")
    else:
        await directory.known(args.user)
        await users.delete_user(args.user, **where)
        _done(args, "deleted")


def _done(args: argparse.Namespace, what: str) -> None:
    print(json.dumps({"user": args.user, what: True}) if args.json else f"{args.user}: {what}")


class UserRow(NamedTuple):
    """A user, for output."""

    user: str
    type: str
    status: str

    @classmethod
    def of(cls, info: UserInfo) -> UserRow:
        """Return the row of a user."""
        return cls(info.username, info.user_type or "", info.user_status or "")

    @property
    def status_shown(self) -> str:
        """The status as an adjective."""
        return f"{self.status}d" if self.status else ""


def _json_user(row: UserRow, brokers: list[str]) -> dict[str, Any]:
    return {**row._asdict(), "brokers": [broker for broker in brokers if broker]}


def _by_row(found: dict[str, list[UserInfo]]) -> dict[UserRow, list[str]]:
    """Return users with the brokers that have them; those that are the same share a row."""
    rows: dict[UserRow, list[str]] = {}
    for broker, users in found.items():
        for user in users:
            rows.setdefault(UserRow.of(user), []).append(broker)
    return dict(sorted(rows.items()))


async def _list(args: argparse.Namespace, directory: UserDirectory) -> None:
    rows = _by_row(await directory.users.users(**directory.where))
    if args.json:
        print(json.dumps([_json_user(row, brokers) for row, brokers in rows.items()]))
    elif rows:
        lines = [
            (row.user, row.type, row.status_shown, ", ".join(brokers))
            for row, brokers in rows.items()
        ]
        print("\n".join(table(("USER", "TYPE", "STATUS", "BROKERS"), lines)))
    else:
        say(f"{directory.place}: there are no users")


async def _show(args: argparse.Namespace, directory: UserDirectory) -> None:
    """Print a user, and the entries of its policies."""
    known = await directory.known(args.user)
    rows = _by_row({broker: [user] for broker, user in known.items()})
    if args.json:
        entries = await entries_of(directory, args.user)
        policies = [json_entry(*each) for each in entries.items()]
        for row, brokers in rows.items():
            print(json.dumps({**_json_user(row, brokers), "entries": policies}))
        return
    for row, brokers in rows.items():
        where = f" on {', '.join(brokers)}" if any(brokers) else ""
        print(f"{row.user}: {row.type}, {row.status_shown}{where}")
    await print_entries(directory, args.user, as_json=False)
