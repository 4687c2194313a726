"""The details of an event of the audit log: names, and the permissions that a change grants.

Only values of users, policies and accounts are recorded, never a password or secret key. Their
number and length are limited; values beyond the limit are counted, so that nothing is hidden.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from firetrail.access.rules import RULES, ReceivedRequest
from firetrail.access.user_bodies import AclInfo, PolicyEntryInfo, UserInfo
from firetrail.auth.policies import User
from firetrail.auth.resources import Requirement
from firetrail.errors import ConfigError, ProtocolError, RequestError
from firetrail.format.files.java_properties import parse_properties
from firetrail.remoting.messages.requests import REQUESTS
from firetrail.remoting.wire.codes import RequestCode as Code
from firetrail.remoting.wire.codes import request_name
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.text import printable

NAME_MAX, NAMES_MAX = 255, 32
"""Maximum length of a name, and maximum number of names in an event."""
WORD_MAX, WORDS_MAX = 64, 8
"""Maximum length of an action, an address or another word, and how many an entry may contain."""
_BODY_MAX = 64 << 10
_ACCOUNT_WORDS = ("admin", "defaultTopicPerm", "defaultGroupPerm", "whiteRemoteAddress")
_ACCOUNT_LISTS = ("topicPerms", "groupPerms")


def audit_details(request: RemotingCommand) -> dict[str, Any]:
    """Return the subject of a request.

    The body of a request whose sender was not authenticated is not decoded.
    """
    row = REQUESTS.get(request.code)
    details: dict[str, Any] = {
        shown: audit_name(value)
        for field, shown in (row.header.shown_names() if row is not None else {}).items()
        if (value := request.fields.get(field))
    }
    detailed = _DETAILED.get(request.code)
    if detailed is not None and request.caller is not None and len(request.body) <= _BODY_MAX:
        with suppress(ConfigError, ProtocolError):  # the request has failed for the same reason
            details |= detailed(request)
    return details


def audit_name(text: str) -> str:
    """Return a name for an event."""
    return printable(text, NAME_MAX)


def needed_names(needs: Iterable[Requirement]) -> dict[str, Any]:
    """Return the topics and groups that a request needs permissions for.

    Args:
        needs: The permissions. If they are unknown, the names before the error are returned.
    """
    found: dict[str, dict[str, None]] = {}  # in the order of the needs
    with suppress(RequestError, ProtocolError):
        for each in needs:
            if each.name:
                found.setdefault(each.kind.lower(), {})[audit_name(each.name)] = None
    details: dict[str, Any] = {}
    for kind, names in found.items():
        details |= {kind: next(iter(names))} if len(names) == 1 else _names(kind, names)
    return details


def created_user(user: User) -> dict[str, Any]:
    """Return the content of the event of a request that creates a user with its policies."""
    acl = AclInfo.of(user)
    return {
        "request": request_name(Code.AUTH_CREATE_USER),
        "username": audit_name(user.name),
        "user_type": user.type.value,
        **({} if acl is None or user.is_super else _granted(acl)),
    }


def _names(kind: str, names: Iterable[str]) -> dict[str, Any]:
    return _listed(f"{kind}s", list(names), NAMES_MAX)


def _named_in_body(request: RemotingCommand) -> dict[str, Any]:
    return needed_names(RULES[request.code].needs(ReceivedRequest(request, "")))


def _settings(request: RemotingCommand) -> dict[str, Any]:
    keys = parse_properties(request.content.decode("utf-8", "replace"))
    return _listed("settings", [audit_name(key) for key in keys], NAMES_MAX)


def _user(request: RemotingCommand) -> dict[str, Any]:
    user = UserInfo.decode(request.content)
    changes = {"user_type": user.user_type, "user_status": user.user_status}
    words = {key: printable(word, WORD_MAX) for key, word in changes.items() if word}
    return {**words, **({"password_changed": True} if user.password else {})}


def _policies(request: RemotingCommand) -> dict[str, Any]:
    return _granted(AclInfo.decode(request.content))


def _granted(acl: AclInfo) -> dict[str, Any]:
    entries = [(policy.policy_type, each) for policy in acl.policies for each in policy.entries]
    shown = [_entry(kind, each) for kind, each in entries[:NAMES_MAX]]
    return {"entries": shown, **_unlisted("entries", len(entries), NAMES_MAX)}


def _entry(kind: str | None, entry: PolicyEntryInfo) -> dict[str, Any]:
    return {
        **({"policyType": printable(kind, WORD_MAX)} if kind else {}),
        "resource": audit_name(entry.resource),
        **_listed("actions", _words(entry.actions), WORDS_MAX),
        "decision": printable(entry.decision, WORD_MAX),
        **_listed("sources", _words(entry.source_ips or ()), WORDS_MAX),
    }


def _account(request: RemotingCommand) -> dict[str, Any]:
    """Return the changes of an account of ACL 1.0: its permissions and the address it trusts."""
    fields = request.fields
    details: dict[str, Any] = {
        key: printable(fields[key], WORD_MAX) for key in _ACCOUNT_WORDS if key in fields
    }
    for key in _ACCOUNT_LISTS:
        if key in fields:
            details |= _separated(key, fields[key])
    return {**details, **({"password_changed": True} if fields.get("secretKey") else {})}


def _white_addresses(request: RemotingCommand) -> dict[str, Any]:
    return _separated("globalWhiteAddrs", request.fields.get("globalWhiteAddrs", ""))


def _separated(key: str, text: str) -> dict[str, Any]:
    return _listed(key, [audit_name(each) for each in text.split(",")], NAMES_MAX)


def _words(texts: Iterable[str]) -> list[str]:
    return [printable(text, WORD_MAX) for text in texts]


def _listed(key: str, values: list[str], most: int) -> dict[str, Any]:
    return {key: values[:most], **_unlisted(key, len(values), most)}


def _unlisted(key: str, count: int, most: int) -> dict[str, int]:
    """Return the number of omitted values, if there are any."""
    return {f"{key}_unlisted": count - most} if count > most else {}


_DETAILED: Mapping[int, Callable[[RemotingCommand], dict[str, Any]]] = {
    **{code: _named_in_body for code, rule in RULES.items() if rule.in_body},
    Code.UPDATE_BROKER_CONFIG: _settings,
    Code.UPDATE_NAMESRV_CONFIG: _settings,
    Code.AUTH_CREATE_USER: _user,
    Code.AUTH_UPDATE_USER: _user,
    Code.AUTH_CREATE_ACL: _policies,
    Code.AUTH_UPDATE_ACL: _policies,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _account,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _white_addresses,
}
"""Requests whose subject is not fully described by the names in the header."""
