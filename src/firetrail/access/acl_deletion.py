"""The check before entries of policies are deleted: brokers answer with success if none matches."""

from collections.abc import Iterable

from firetrail.access.user_bodies import AclInfo
from firetrail.auth.policies import SUBJECT_PREFIX, PolicyType
from firetrail.auth.resources import Resource
from firetrail.errors import NoSuchError
from firetrail.text import some_of


def check_acl_deletion(
    acls: Iterable[AclInfo],
    name: str,
    resource: str | None,
    policy_type: PolicyType | None,
    place: str,
) -> None:
    """Raise NoSuchError if a user has no entry to delete: the resource may be misspelt.

    Args:
        acls: The policies of all users.
        name: The name of the user.
        resource: The resource of the entries; None for all.
        policy_type: The type of the policy; None for both.
        place: Where the user is, for the error.

    Raises:
        NoSuchError: There is no such entry.
        ConfigError: The resource is not valid.
    """
    wanted = None if resource is None else Resource.parse(resource)
    labels: dict[str, None] = {}  # in the order of the entries
    for acl in acls:
        for policy in acl.policies if acl.subject == SUBJECT_PREFIX + name else ():
            for entry in policy.entries:
                if policy_type in (None, policy.type) and (
                    wanted in (None, Resource.parse(entry.resource))
                ):
                    return
                is_custom = policy.type is PolicyType.CUSTOM
                labels[entry.resource if is_custom else f"{entry.resource} ({policy.type})"] = None
    missing = "no entries" if wanted is None else f"no entry for {wanted}"
    where = f" in the policy {policy_type}" if policy_type else ""
    hint = "'firetrail acl list' lists the entries of all users"
    if labels:
        hint = f"it has entries for {some_of(list(labels))}"
    raise NoSuchError(f"{place}: {name} has {missing}{where}; {hint}")
