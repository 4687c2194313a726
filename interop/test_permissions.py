"""Every request with every role: the verdicts of Firetrail's rules and of a Java broker 5.3.3.

The requests come from the one table of rules, and the verdicts of Firetrail from its guard. A Java
broker and a running Firetrail broker get the same users, policies and requests over sockets.
Firetrail's broker has the verdicts of the guard. Java's has them except for the listed roles of the
listed requests, each with its reason.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.servers import Servers
from interop.test_user_commands import ADMIN, SETTINGS
from tests.access.actors import Peer, acl, credentials, guard_of
from tests.broker.brokers import talking
from tests.broker.test_every_request import ALL_GOOD, GOOD_BODIES

from firetrail.access.guard import AccessPolicy
from firetrail.access.rules import RULES
from firetrail.access.user_bodies import AclInfo, UserInfo
from firetrail.auth.credentials import Credentials
from firetrail.auth.policies import Policy, User, UserStatus, UserType
from firetrail.auth.signature import Signer
from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import PLAIN_CODES
from firetrail.remoting.wire.command import RemotingCommand

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
    r"|is disabled|is not a super user"
)
"""Texts of refusals. The code 16 also means that a feature is switched off."""
UNSIGNED, FORGED, UNKNOWN = "unsigned", "forged", "unknown"


class Difference(NamedTuple):
    """The roles for which the two brokers differ, and why."""

    roles: frozenset[str]
    reason: str


def _all_but(*allowed: str) -> frozenset[str]:
    """Return the roles without these, and without super users and those who cannot log in."""
    return frozenset(ROLES) - {*allowed, "everything", "super", "disabled"}


def _same(codes: Iterable[int], roles: frozenset[str], reason: str) -> dict[int, Difference]:
    return dict.fromkeys(codes, Difference(roles, reason))


_UNCHECKED = "5.3.3 asks for nothing but a signature"
_BODY = f"{_UNCHECKED}: it does not look into bodies"
_SUPER = "only super users manage users; 5.3.3 asks for a permission on the cluster"
_FOUND = "the topic of the message that is found decides, not the one in the request"
_SUB = "Sub is enough, as since 5.5.1: consumers start with it"
_CHANGES = _all_but("operator", "denied")
_REVEALS = _all_but("observer", "denied")
_SUPERS = frozenset({"everything", "denied"})
STRICTER = {
    **_same((18,), _all_but("topics-only", "creator"), _BODY),
    **_same((46, 400, 200151), _all_but("subscriber"), _BODY),
    **_same((200, 225), _all_but("groups-only", "creator"), _BODY),
    **_same((401,), _all_but("creator"), _BODY),
    **_same((25, 306, 316, 329), _CHANGES, _UNCHECKED),
    **_same((26, 28, 43, 45, 60, 61, 402, 907, 1007, 2003), _REVEALS, _UNCHECKED),
    **_same((21,), _REVEALS - {"topics-only"}, f"{_UNCHECKED}; List on all topics will do"),
    **_same((201,), _REVEALS - {"groups-only"}, f"{_UNCHECKED}; List on all groups will do"),
    **_same((324, 325), _all_but("topics-only"), _UNCHECKED),
    **_same((361,), _all_but("subscriber"), _UNCHECKED),
    309: Difference(
        frozenset({"subscriber"}),
        "it makes a consumer consume, so it needs Update; 5.3.3 asks for Sub",
    ),
    314: Difference(
        frozenset({"creator"}),
        "the offsets of the other group are read, so it also needs Get there",
    ),
    **_same((3001, 3002, 3003, 3006, 3007, 3008), _SUPERS | {"operator"}, _SUPER),
    **_same((3004, 3005, 3009, 3010), _SUPERS | {"observer"}, _SUPER),
}
"""Requests that Firetrail refuses to these roles and Java does not."""
LOOSER = {
    **_same((29, 30, 31, 32, 33, 200055), frozenset({"subscriber"}), _SUB),
    309: Difference(frozenset({"groups-only", "creator"}), f"Update is enough, and {_FOUND}"),
    323: Difference(_all_but("topics-only", "creator"), _FOUND),
}
"""Requests that Java refuses to these roles and Firetrail's guard does not."""
NOT_COMPARED = {
    **dict.fromkeys(PLAIN_CODES, "ACL 1.0, which 5.3.3 does not have"),
    **dict.fromkeys(range(31001, 31007), "Firetrail's own"),
}
NAME_SERVER = frozenset(
    {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318}
    | {319, 322, 327, 901, 904}
)
"""Requests to the name server, where Java checks nothing."""
CODES = sorted(set(RULES) - set(NOT_COMPARED) - NAME_SERVER)
EVERYBODY = (*ROLES, UNSIGNED, FORGED, UNKNOWN)
ANSWER_S = 30
PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"


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


async def refused_by(address: str, codes: Iterable[int]) -> dict[int, set[str]]:
    """Send every request with every role to a broker; return the roles that it refuses."""
    client = RemotingClient()
    refused: dict[int, set[str]] = {}
    try:
        for code in codes:
            refused[code] = set()
            for role in EVERYBODY:
                answer = await client.request(address, request_of(code, role), ANSWER_S)
                if answer.code == 16 and IS_REFUSAL.search(answer.remark or "") is not None:
                    refused[code].add(role)
    finally:
        await client.close()
    return refused


def refused_by_guard(codes: Iterable[int]) -> dict[int, set[str]]:
    """Return the roles that Firetrail's guard refuses."""
    return {code: {role for role in EVERYBODY if refused_by_us(code, role)} for code in codes}


async def test_java_gives_the_same_verdicts_except_for_the_listed_roles(broker: str) -> None:
    java, ours = await refused_by(broker, CODES), refused_by_guard(CODES)
    stricter = {code: ours[code] - java[code] for code in CODES if ours[code] - java[code]}
    looser = {code: java[code] - ours[code] for code in CODES if java[code] - ours[code]}
    assert stricter == {code: each.roles for code, each in STRICTER.items()}
    assert looser == {code: each.roles for code, each in LOOSER.items()}


@pytest.mark.time_limit(180)
async def test_a_running_broker_gives_the_verdicts_of_its_guard(tmp_path: Path) -> None:
    config = BrokerConfig(
        cluster=CLUSTER,
        authentication=True,
        authorization=True,
        init_user=Credentials(*ADMIN),
    )
    async with talking(tmp_path, config) as talk:
        await _create_users(talk.broker.address)
        codes = sorted(RULES)
        assert await refused_by(talk.broker.address, codes) == refused_by_guard(codes)


def test_the_page_lists_the_same_requests() -> None:
    section = PAGE.read_text().split("### Compared with a broker 5.3.3\n")[1].split("\n#")[0]
    items = "".join(re.findall(r"^(?:- |  ).*\n", section, re.MULTILINE))
    items = re.sub(r"\d+(\.\d+)+", "", items)  # versions
    listed: set[int] = set()
    for first, last in re.findall(r"\b(\d+)(?: to (\d+))?\b", items):
        listed.update(range(int(first), int(last or first) + 1))
    assert listed == {*STRICTER, *LOOSER}
