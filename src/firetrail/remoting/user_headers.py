"""Headers of the requests about users and policies."""

from __future__ import annotations

from dataclasses import dataclass

from firetrail.remoting.header import Header


@dataclass(frozen=True, slots=True)
class UserHeader(Header):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER."""

    username: str


@dataclass(frozen=True, slots=True)
class AclHeader(Header):
    """AUTH_UPDATE_ACL, AUTH_DELETE_ACL."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None
