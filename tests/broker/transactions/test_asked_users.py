"""Questions about transactions: only users who may send to the topic are asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.access.actors import SECURE
from tests.broker.brokers import talking
from tests.broker.halves import PROPERTIES
from tests.broker.secured import Secured

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import HeartbeatData, ProducerData
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand


class AskedUsers(Secured):
    """A broker with a half message of T1 that is due to be checked, and a client of its group.

    Attributes:
        questions: The questions about transactions that the client has received.
    """

    questions: list[RemotingCommand]

    async def join(self, user: str) -> None:
        beat = HeartbeatData(f"client of {user}", [ProducerData("PG")]).encode(standard=True)
        assert (await self.ask(RequestCode.HEART_BEAT, {}, beat, by=user)).code == 0

    async def check(self) -> int:
        """Check transactions; return how many questions the client has received by then."""
        await asyncio.to_thread(self.broker.store.wait_dispatched)  # a check sees queues only
        await self.broker.check_transactions()
        assert (await self.ask(4711)).code == 3  # the broker sends questions before this answer
        return len(self.questions)


@asynccontextmanager
async def half_message() -> AsyncIterator[AskedUsers]:
    questions: list[RemotingCommand] = []

    def note(connection: Connection, request: RemotingCommand) -> None:
        questions.append(request)

    handlers: dict[int, Handler] = {RequestCode.CHECK_TRANSACTION_STATE: note}
    async with talking(None, SECURE, client_handlers=handlers) as talk:
        users = AskedUsers(talk)
        users.questions = questions
        properties = f"{PROPERTIES}CHECK_IMMUNITY_TIME_IN_SECONDS\x010\x02"
        assert (await users.send("T1", i=properties, f="4")).code == 0
        yield users


async def test_a_stranger_in_the_producer_group_is_not_asked_about_a_transaction() -> None:
    """The question for the outcome contains the message."""
    async with half_message() as users:
        await users.allow("alice")
        await users.join("alice")
        assert await users.check() == 0
        await users.join("root")  # root may send to the topic
        assert await users.check() == 1


async def test_a_user_that_lost_its_rights_is_not_asked_about_a_transaction() -> None:
    async with half_message() as users:
        await users.allow("alice", "Topic:T1 Pub")
        await users.join("alice")
        for code, fields in (
            (RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice"}),
            (RequestCode.AUTH_DELETE_USER, {"username": "alice"}),
        ):
            assert (await users.ask(code, fields)).code == 0
            assert await users.check() == 0
