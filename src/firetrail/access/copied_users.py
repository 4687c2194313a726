"""The changes that give the users of a slave the state of the users of its master.

A master shows its passwords only if an operator has allowed it. Without them, a slave can take over
everything else, but it cannot create a user.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from firetrail.access.user_bodies import AclInfo, UserInfo, check_user_name, user_status, user_type
from firetrail.auth.policies import SUBJECT_PREFIX, Policy, User


class CopiedUsers(NamedTuple):
    """The users of a slave after a comparison.

    Attributes:
        users: The users by name.
        changes: The changes, such as ``deleted user alice``.
        missing: The names of the master's users that the slave lacks, because it does not know
            their passwords.
        unverified: The number of users whose password could not be compared.
    """

    users: Mapping[str, User]
    changes: list[str]
    missing: list[str]
    unverified: int


def copied_users(
    own: Mapping[str, User], infos: Iterable[UserInfo], acls: Iterable[AclInfo]
) -> CopiedUsers:
    """Return the users of a slave, updated from those of its master.

    Args:
        own: The users of the slave by name.
        infos: The users of the master; without passwords if it does not show them.
        acls: The policies of the master's users.

    Raises:
        ConfigError: The master has a user or a policy that is not valid here.
    """
    policies = {acl.subject.removeprefix(SUBJECT_PREFIX): acl for acl in acls}
    none = (Policy(), Policy())
    users: dict[str, User] = {}
    changes, missing, unverified = [], [], 0
    for info in infos:
        name, before = info.username, own.get(info.username)
        password = info.password if isinstance(info.password, str) else ""
        if before is None and not password:
            missing.append(name)
            continue
        unverified += not password
        user = User(
            check_user_name(name),
            password or (before.password if before is not None else ""),
            user_type(info.user_type),
            user_status(info.user_status),
            policies[name].merged(none) if name in policies else none,
        )
        if before is None:
            changes.append(f"created user {name}")
        elif _is_same(user, before):
            user = before  # it keeps what was decided about its requests
        else:
            changes.append(f"changed user {name}")
        users[name] = user
    changes += [f"deleted user {name}" for name in sorted(own.keys() - users.keys())]
    return CopiedUsers(users, changes, sorted(missing), unverified)


def _is_same(user: User, other: User) -> bool:
    entries = [[policy.entries for policy in each.policies] for each in (user, other)]
    return entries[0] == entries[1] and user == replace(other, policies=user.policies)
