"""Every request with every role: the verdicts of Firetrail's rules and of a Java broker 5.3.3.

The requests and the verdicts of Firetrail come from the one table of rules. The Java broker gets
the same users, policies and requests. Every difference is in the list, with its reason.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
from interop.servers import Servers
from interop.test_user_commands import ADMIN, SETTINGS
from tests.access.actors import Peer, acl, credentials, guard_of
from tests.broker.test_every_request import ALL_GOOD, GOOD_BODIES

from firetrail.access.bodies import AclInfo, UserInfo
from firetrail.access.guard import AccessPolicy
from firetrail.access.rules import PLAIN_CODES, RULES
from firetrail.auth.credentials import Credentials
from firetrail.auth.policies import Policy, User, UserStatus, UserType
from firetrail.auth.signature import Signer
from firetrail.errors import NotReachedError
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.command import RemotingCommand

CLUSTER = "DefaultCluster"
FIELDS = {
    **ALL_GOOD,
    **dict.fromkeys(("topic", "b"), "T1"),
    **dict.fromkeys(("consumerGroup", "group", "groupName", "srcGroup", "destGroup"), "CG"),
    **dict.fromkeys(("filterGroups", "compareGroup"), "CG"),
    "clusterName": CLUSTER,
    "cluster": CLUSTER,
    "topicFilterType": "SINGLE_TAG",
    "attributes": "",
    "jstackEnable": "false",
    "i": "",
    "properties": "",
}
ROLES: dict[str, tuple[AclInfo, ...]] = {
    "nobody": (),
    "publisher": (acl("publisher", "Topic:T1 Pub", "Topic:T2 Pub"),),
    "subscriber": (acl("subscriber", "Topic:T1 Sub", "Group:CG Sub"),),
    "reader": (acl("reader", "Topic:T1 Get", "Group:CG Get"),),
    "topics-only": (acl("topics-only", "Topic:* All"),),
    "groups-only": (acl("groups-only", "Group:* All"),),
    "creator": (
        acl("creator", *(f"{each} Create,Update,Delete" for each in ("Topic:*", "Group:*"))),
    ),
    "stranger": (acl("stranger", "Topic:T9 All", "Group:G9 All"),),
    "observer": (acl("observer", f"Cluster:{CLUSTER} Get"),),
    "operator": (acl("operator", f"Cluster:{CLUSTER} Update"),),
    "everything": (acl("everything", "* All"),),
    "elsewhere": (acl("elsewhere", "* All", sources=["10.9.8.7"]),),
    "denied": (
        acl("denied", "* All"),
        acl("denied", "Topic:T1 All", "Group:CG All", "Topic:T2 All", decision="Deny"),
    ),
    "super": (),
    "disabled": (),
}
"""Users and their policies."""
IS_REFUSAL = re.compile(
    r"has no permission to access|username cannot be null|check signature failed|is not found"
    r"|is disabled"
)
"""Texts of refusals. The code 16 also means that a feature is switched off."""
UNSIGNED, FORGED, UNKNOWN = "unsigned", "forged", "unknown"

_UNCHECKED = "5.3.3 asks for nothing but a signature"
_BODY = f"{_UNCHECKED}: it does not look into bodies"
_FOUND = "the topic of the message that is found decides, not the one in the request"
STRICTER = {
    **dict.fromkeys((18, 46, 200, 225, 400, 401, 200151), _BODY),
    **dict.fromkeys((21, 25, 26, 28, 43, 45, 201, 306, 316, 329), _UNCHECKED),
    **dict.fromkeys((60, 61, 324, 325, 361, 402, 907, 1007, 2003), _UNCHECKED),
    309: "it makes a consumer consume, so it needs Update; 5.3.3 asks for Sub",
    314: "the offsets of the other group are read, so it also needs Get there",
    **dict.fromkeys(range(3001, 3011), "only super users manage users; 5.3.3 asks for Update"),
}
"""Requests that Firetrail refuses to some roles and Java does not."""
LOOSER = {
    **dict.fromkeys((29, 30, 31, 32, 33), "Sub is enough, as since 5.5.1: consumers start with it"),
    **dict.fromkeys((309, 323), _FOUND),
    200055: "Sub is enough, as for the other requests of consumers",
}
"""Requests that Java refuses to some roles and Firetrail does not."""
NOT_COMPARED = {
    **dict.fromkeys(PLAIN_CODES, "ACL 1.0, which 5.3.3 does not have"),
    **dict.fromkeys((31001, 31002, 31003, 31004), "Firetrail's own"),
}
NAME_SERVER = frozenset(
    {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318}
    | {319, 322, 327, 901, 904}
)
"""Requests to the name server, where Java checks nothing."""
CODES = sorted(set(RULES) - set(NOT_COMPARED) - NAME_SERVER)


def request_of(code: int, role: str) -> RemotingCommand:
    """Return the request of a role."""
    body = GOOD_BODIES[code].encode(standard=True) if code in GOOD_BODIES else b""  # type: ignore[index]
    fields = dict(FIELDS)
    if role == UNSIGNED:
        return RemotingCommand(code, fields, body)
    secret = "not the password" if role == FORGED else credentials(role).secret_key
    name = "super" if role == FORGED else role
    return RemotingCommand(code, Signer(Credentials(name, secret)).fields(fields, body), body)


def users() -> list[User]:
    """Return the users as Firetrail knows them."""
    found = []
    for name, acls in ROLES.items():
        policies = (Policy(), Policy())
        for each in acls:
            policies = each.merged(policies)
        kind = UserType.SUPER if name == "super" else UserType.NORMAL
        status = UserStatus.DISABLED if name == "disabled" else UserStatus.ENABLED
        found.append(User(name, credentials(name).secret_key, kind, status, policies))
    return found


def refused_by_us(code: int, role: str) -> bool:
    """Whether Firetrail's guard refuses the request."""
    answer = GUARD(Peer("127.0.0.1:5000"), request_of(code, role))  # type: ignore[arg-type]
    return answer is not None and answer.code == 16


GUARD = guard_of(*users(), policy=AccessPolicy(cluster=CLUSTER))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    servers = Servers("v5", tmp_path_factory.mktemp("java"))
    with (
        servers.name_server() as namesrv,
        servers.broker(namesrv, "broker-j", settings=SETTINGS) as address,
    ):
        asyncio.run(_create_users(address))
        yield address


async def _create_users(address: str) -> None:
    client, signer = RemotingClient(), Signer(Credentials(*ADMIN))

    async def ask(code: int, fields: dict[str, str], body: bytes) -> None:
        request = RemotingCommand(code, signer.fields(fields, body), body)
        answer = await client.request(address, request, 30)
        assert answer.code == 0, answer.remark

    try:
        for user in users():
            name = {"username": user.name}
            info = UserInfo(user.name, user.password, user.type, user.status)
            await ask(3001, name, info.encode(standard=True))
            if user.status is UserStatus.DISABLED:
                await ask(3002, name, UserInfo(user.name, None, None, "disable").encode())
            for each in ROLES[user.name]:
                await ask(3006, {"subject": each.subject}, each.encode(standard=True))
    finally:
        await client.close()


async def test_java_gives_the_same_verdicts_except_for_the_listed_requests(broker: str) -> None:
    client = RemotingClient()
    stricter: dict[int, list[str]] = {}
    looser: dict[int, list[str]] = {}
    try:
        for code in CODES:
            for role in (*ROLES, UNSIGNED, FORGED, UNKNOWN):
                refused = False
                with suppress(NotReachedError):  # no answer: it waits, so it was not refused
                    answer = await client.request(broker, request_of(code, role), 5)
                    refused = (
                        answer.code == 16 and IS_REFUSAL.search(answer.remark or "") is not None
                    )
                if refused_by_us(code, role) and not refused:
                    stricter.setdefault(code, []).append(role)
                if refused and not refused_by_us(code, role):
                    looser.setdefault(code, []).append(role)
    finally:
        await client.close()
    assert set(stricter) == set(STRICTER), stricter
    assert set(looser) == set(LOOSER), looser
