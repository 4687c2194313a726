"""A broker with access control, and requests that users sign."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.access.actors import SECURE, acl, info, signed
from tests.broker.brokers import Talk, talking
from tests.helpers import PATIENCE_S

from firetrail.access.user_bodies import AclInfo
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

SEND = {
    "a": "PG",
    "b": "T1",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x01U1\x02KEYS\x01k1\x02",
    "j": "0",
    "k": "false",
}


class Secured:
    """A broker with access control, and a client whose requests are signed by users."""

    def __init__(self, talk: Talk) -> None:
        self.broker = talk.broker
        self._client = talk.client

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        by: str = "root",
        address: str = "",
    ) -> RemotingCommand:
        return await self.request(signed(code, fields, body, by=by), address)

    async def request(self, command: RemotingCommand, address: str = "") -> RemotingCommand:
        return await self._client.request(address or self.broker.address, command, PATIENCE_S)

    async def allow(self, name: str, *grants: str) -> None:
        body = info(name).encode(standard=True)
        answer = await self.ask(RequestCode.AUTH_CREATE_USER, {"username": name}, body)
        assert answer.code == 0, answer.remark
        if grants:
            await self.grant(acl(name, *grants))

    async def grant(self, policies: AclInfo) -> None:
        fields = {"subject": policies.subject}
        answer = await self.ask(RequestCode.AUTH_CREATE_ACL, fields, policies.encode(standard=True))
        assert answer.code == 0, answer.remark

    async def send(self, topic: str, *, by: str = "root", **more: str) -> RemotingCommand:
        fields = SEND | {"b": topic} | more
        return await self.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello", by=by)


@asynccontextmanager
async def secured(folder: Path | None = None) -> AsyncIterator[Secured]:
    async with talking(folder, SECURE) as talk:
        yield Secured(talk)
