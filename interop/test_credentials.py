"""Stock clients with credentials at a broker with ACL 2.0; each signs in its own way.

Every client has a topic and a group, which one user may use. This user sends a message and consumes
it. The listener fails once, so that heartbeats, pulls, offsets, the message that is sent back and
the retry topic of the group are signed and permitted, too. A wrong key, no key and a user who has
permissions for another topic are refused.

There are two name servers. Firetrail's checks requests as the broker does, so that a client without
permission gets no route. The other one checks nothing, as RocketMQ's own, and the broker refuses.
gRPC clients use TLS. The one for Node.js verifies the certificate.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.grpc_servers import serving, until
from interop.servers import our_name_server
from interop.stock import (
    HERE,
    WAIT_S,
    Shown,
    bodies,
    client_environment,
    create_topics,
    lag,
    needs,
    of,
    shown,
)
from tests.ports import free_port
from tests.tls.authority import Authority

from firetrail.client import Access, Admin, Credentials

NEEDS_JAVA = False
ADMIN = ("admin", "the-password-of-admin")
SHOP = ("shop", "the-password-of-shop")
GUEST = ("guest", "the-password-of-guest")
BY_ADMIN = Access(credentials=Credentials(*ADMIN))
SETTINGS = f"""\
messageDelayLevel=1s 1s 1s 1s 1s
authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={json.dumps({"username": ADMIN[0], "password": ADMIN[1]})}
"""
JAVA = ("-XX:TieredStopAtLevel=1", "-Duser.home=.")
WRONG = (SHOP[0], "another-password")
REFUSED = {
    "wrong key": (WRONG, "check signature failed."),
    "no key": (None, "username cannot be null."),
    "another topic": (GUEST, "User:guest has no permission to access Topic:"),
}
"""Credentials that are refused, with the text of the broker."""


class Stock(NamedTuple):
    """A client.

    ``command`` returns its command without arguments, for the folder of its environment.
    ``refusal`` is how the client shows a refusal of the broker, whose text replaces the braces, and
    ``no_route`` one of the name server. It is empty for a client that waits for a route.
    """

    environment: str
    tool: str
    command: Callable[[Path], Sequence[str | Path]]
    prefix: str
    refusal: Sequence[str]
    no_route: str = ""

    @property
    def topic(self) -> str:
        return f"{self.prefix.title().replace('_', '')}Secured"

    @property
    def group(self) -> str:
        return f"{self.prefix}_SECURED"


REMOTING = {
    "go": Stock(
        "go",
        "go",
        lambda made: [made / "client"],
        "GO",
        ["CODE: 16, DESC: {}"],
        "route info not found|CODE: 16, DESC: User:guest",
    ),
    # It says of every error that there is no route. Its log has the answer of the broker.
    "cpp": Stock(
        "cpp",
        "python3",
        lambda made: [made / "venv" / "bin" / "python", HERE / "cpp" / "client.py"],
        "CPP",
        ["No route info of this topic", "remark:{}", "error code:16"],
        "No route info of this topic",
    ),
    # It does not say what the answer to the last attempt was.
    "ali-ons": Stock(
        "node",
        "npm",
        lambda made: ["node", made / "ali_ons.js"],
        "ALI",
        ["Send [4] times, still failed"],
        "code: 16",
    ),
    # Without a route it tries for half a minute.
    "rocketmq-nodejs": Stock(
        "node",
        "npm",
        lambda made: ["node", made / "rocketmq_nodejs.js"],
        "NAPI",
        ["[MQBrokerException] msg: {}", "error: 16"],
    ),
}
GRPC = {
    "java": Stock(
        "java-grpc",
        "javac",
        lambda made: ["java", *JAVA, "-cp", f"{made}/lib/*:{made}", "GrpcClient"],
        "JAVA_GRPC",
        ["UnauthorizedException: ", "response-code=40100] {}"],
    ),
    "go": Stock(
        "go-grpc",
        "go",
        lambda made: [made / "client"],
        "GO_GRPC",
        ["CODE: UNAUTHORIZED, MESSAGE: {}"],
    ),
    "node": Stock(
        "node-grpc",
        "npm",
        lambda made: ["node", made / "client.js"],
        "NODE_GRPC",
        ["UnauthorizedException", "{}", "code: 40100"],
    ),
}
CLIENTS = [*REMOTING.values(), *GRPC.values()]


class Secured(NamedTuple):
    """Addresses of Firetrail's servers, ``unchecked`` being the name server that checks nothing."""

    namesrv: str
    unchecked: str
    broker: str
    grpc: str
    folder: Path
    trust: str

    def command(
        self, client: Stock, user: tuple[str, str] | None, *arguments: str
    ) -> list[str | Path]:
        """Return the command of a client, with the credentials of a user in its environment.

        The gRPC client for Node.js gets the authority whose certificates it trusts.
        """
        needs(client.tool)
        made = client_environment(client.environment)
        variables = [f"CLIENT_TOPIC={client.topic}"]
        variables.append(f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={self.trust}")
        if user:
            variables += [f"CLIENT_USER={user[0]}", f"CLIENT_PASSWORD={user[1]}"]
        return ["env", *variables, *client.command(made), *arguments]

    def run(self, client: Stock, user: tuple[str, str] | None, *arguments: str) -> Shown:
        """Run a client as a user, up to its end."""
        home = Path(tempfile.mkdtemp(dir=self.folder))
        return shown(self.command(client, user, *arguments), home)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    certificate, key = authority.issue()
    settings = f"{SETTINGS}tlsCertPath={certificate}\ntlsKeyPath={key}\nnamesrvAddr="
    with (
        our_name_server() as unchecked,
        serving(folder, free_port(), settings=settings + unchecked) as found,
    ):
        namesrv, broker, grpc = found["name_server"], found["broker"], found["grpc"]
        asyncio.run(prepared(namesrv))
        yield Secured(namesrv, unchecked, broker, grpc, folder, authority.trust)


async def prepared(namesrv: str) -> None:
    """Create users, their policies, and topics; retry topics so that clients find them at once."""
    topics = [client.topic for client in CLIENTS]
    groups = [client.group for client in CLIENTS]
    retries = [f"%RETRY%{group}" for group in groups]
    await create_topics(namesrv, *topics, *retries, "Other", access=BY_ADMIN)
    async with Admin(namesrv, access=BY_ADMIN) as admin:
        for name, password in (SHOP, GUEST):
            await admin.create_user(name, password)
        own = [*(f"Topic:{topic}" for topic in topics), *(f"Group:{group}" for group in groups)]
        await admin.set_acl(SHOP[0], own, ["Pub", "Sub"])
        await admin.set_acl(GUEST[0], ["Topic:Other", "Topic:TBW102"], ["Pub", "Sub"])


@pytest.mark.parametrize("client", REMOTING.values(), ids=REMOTING)
def test_a_user_sends_and_consumes(secured: Secured, client: Stock) -> None:
    _, events, errors = secured.run(client, SHOP, secured.namesrv, secured.broker)
    assert bodies(events, "sent", "sync") == ["signed"], errors
    assert bodies(events, "got", "secured") == ["signed"] * 2, errors
    assert [e.get("times", n) for n, e in enumerate(of(events, "got", "secured"))] == [0, 1]
    assert asyncio.run(lag(secured.namesrv, client.group, client.topic, BY_ADMIN)) == 0


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("client", REMOTING.values(), ids=REMOTING)
def test_refusals_of_the_broker(secured: Secured, client: Stock, case: str) -> None:
    user, text = REFUSED[case]
    refused = secured.run(client, user, secured.unchecked, secured.broker)
    assert refused.status
    assert not refused.events
    for part in client.refusal:
        assert part.format(text) in refused.errors


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize(
    "client", [each for each in REMOTING.values() if each.no_route], ids=lambda each: each.prefix
)
def test_refusals_of_the_name_server(secured: Secured, client: Stock, case: str) -> None:
    refused = secured.run(client, REFUSED[case][0], secured.namesrv, secured.broker)
    assert refused.status
    assert not refused.events
    assert re.search(client.no_route, refused.errors)


@pytest.mark.parametrize("client", GRPC.values(), ids=GRPC)
def test_a_user_of_grpc_sends_and_consumes(secured: Secured, client: Stock) -> None:
    async def acknowledged() -> None:
        async with asyncio.timeout(WAIT_S):
            while await lag(secured.namesrv, client.group, client.topic, BY_ADMIN):
                await asyncio.sleep(0.1)

    with subprocess.Popen(
        secured.command(client, SHOP, secured.grpc, "tls"),
        cwd=secured.folder,
        env={**os.environ, "HOME": str(secured.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            said = until(program, "ready")
            asyncio.run(acknowledged())
        finally:
            program.kill()
    assert bodies(said, "sent", "normal") == ["signed"]
    assert bodies(said, "got", "secured") == ["signed"] * 2
    assert [event["times"] for event in of(said, "got", "secured")] == [1, 2]


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("client", GRPC.values(), ids=GRPC)
def test_refusals_of_the_grpc_service(secured: Secured, client: Stock, case: str) -> None:
    user, text = REFUSED[case]
    refused = secured.run(client, user, secured.grpc, "tls")
    assert refused.status
    assert not refused.events
    for part in client.refusal:
        assert part.format(text) in refused.errors
