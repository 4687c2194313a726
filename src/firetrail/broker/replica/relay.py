"""The relay of requests from a slave to the master, for clients that have not noticed a change.

After a change of the master, stock clients send to the former one until they ask a name server
again, which can take 30 seconds. A slave of a group passes such requests on. Every slave does so
with commits of offsets: it would lose them with the next copy of the master's table.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from firetrail.auth.signature import SIGNATURE
from firetrail.errors import FiretrailError, RequestError
from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler
from firetrail.remoting.connections.remoting_client import NotConnectedError, RemotingClient
from firetrail.remoting.messages.headers import ConsumerOffsetHeader
from firetrail.remoting.messages.requests import REFUSED_BY_SLAVES, REQUESTS, RequestTrait
from firetrail.remoting.wire.codes import CommandFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import Clock

CHANGE_S = 2.5
"""The time that a request waits for a master and for its answer, in all. Stock clients give a send
up after 3 s; if it were handled after that, it would be stored beside the one that the client sends
instead."""
RETRY_S = 0.05
"""Pause before the next attempt while there is no master."""
RELAYED = "passed on by a slave"
"""The remark of a request that is passed on, which a slave does not pass on again."""
NO_MASTER = "the group has no master at the moment; commit the offset again"
"""The remark of a refused commit. Consumers keep the offset, and commit it again."""
COMMITS_MAX = 100_000
"""Maximum number of queues whose commits in pulls wait to be passed on; commits for more queues are
dropped, and consumers commit again."""
PASSED_ON = frozenset(
    code for code in REFUSED_BY_SLAVES if RequestTrait.AWAITS not in REQUESTS[code].traits
)
"""The requests that a member of a group passes on, but not pops: they wait for messages, and
clients repeat them."""

_log = logging.getLogger(__name__)


class Relay:
    """Passes requests of clients from a slave to its master."""

    def __init__(
        self,
        access: Access | None,
        master: Callable[[], str | None],
        clock: Clock,
        *,
        in_group: bool,
        has_guard: bool,
    ) -> None:
        """Initialize.

        Args:
            access: Credentials and TLS of the broker; None for those in the environment.
            master: Returns ``ip:port`` of the master, None if there is none at the moment.
            clock: The clock.
            in_group: Whether the broker is a member of a group. Then there is a master again soon.
            has_guard: Whether requests are checked. Then only signed ones are passed on.
        """
        own = access if access is not None else Access.from_environment()
        self._own = RemotingClient(access=own)
        self._client = RemotingClient(access=Access(tls=own.tls))  # keeps the client's signature
        self._master = master
        self._in_group = in_group
        self._has_guard = has_guard
        self._commits: dict[tuple[str, str, int], int] = {}
        self._committing: asyncio.Task[None] | None = None
        self.hold: Handler | None = None
        """Lets requests wait for the next term, once this one ends."""
        self._limited_log = LimitedLog(_log, clock.monotonic)

    async def close(self) -> None:
        """Close the connections."""
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.gather(self._committing, return_exceptions=True)
        await self._client.close()
        await self._own.close()

    def around(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Return the handlers of a slave, with those that pass requests on."""
        passing: dict[int, Handler] = {}
        if self._in_group:
            codes = handlers.keys() & PASSED_ON
            passing = {code: self._passing(handlers[code]) for code in codes}
            query = RequestCode.QUERY_CONSUMER_OFFSET
            passing[query] = self._querying(handlers[query])
        commit = handlers[RequestCode.UPDATE_CONSUMER_OFFSET]
        passing[RequestCode.UPDATE_CONSUMER_OFFSET] = self._committing_with(commit)
        return {**handlers, **passing}

    # -- requests -----------------------------------------------------------------------------

    def _passing(self, otherwise: Handler) -> Handler:
        async def handle(
            connection: Connection, request: RemotingCommand
        ) -> RemotingCommand | None:
            answer = await self._pass_on(request)
            if answer is not None:
                return answer
            return _now((self.hold or otherwise)(connection, request))

        return handle

    def _querying(self, query: Handler) -> Handler:
        """Return a handler that never returns an older offset than the master would."""
        passing = self._passing(lambda connection, request: not_master(request))

        def handle(connection: Connection, request: RemotingCommand) -> Answer:
            if request.remark == RELAYED:  # the other slave takes this one for the master
                return not_master(request)
            handler = passing if self._may_pass(request) else query
            return handler(connection, request)

        return handle

    def _committing_with(self, commit: Handler) -> Handler:
        async def handle(
            connection: Connection, request: RemotingCommand
        ) -> RemotingCommand | None:
            """Pass a commit on.

            Without a master it is refused, or outside of a group, kept here, as in RocketMQ. A
            master's offsets replace those of this slave, so a commit that it does not get is
            refused, too, although it is kept until then.
            """
            answer = await self._pass_on(request)
            if answer is None and self.hold is not None:
                return _now(self.hold(connection, request))
            if answer is None and self._in_group:
                return not_master(request)
            if answer is None:
                kept, master = _now(commit(connection, request)), self._master()
                if master is None or kept is None or kept.code != ResponseCode.SUCCESS:
                    return kept
                return self._not_passed_on(request, master)
            if answer.code == ResponseCode.SUCCESS:
                with suppress(RequestError):  # the topic may not be copied yet
                    commit(connection, request)
            return answer

        return handle

    def _not_passed_on(self, request: RemotingCommand, master: str) -> RemotingCommand:
        """Return the refusal of a commit that a known master has not received."""
        if request.remark == RELAYED:
            return not_master(request)
        reason = "it does not answer" if self._may_pass(request) else "the request has no signature"
        return request.answer(
            ResponseCode.SYSTEM_BUSY,
            f"the offset could not be passed on to the master {master}, whose offsets replace it: "
            f"{reason}; commit it again at the master",
        )

    def _may_pass(self, request: RemotingCommand) -> bool:
        if request.remark == RELAYED:
            return False
        return not self._has_guard or SIGNATURE in request.fields

    async def _pass_on(self, request: RemotingCommand) -> RemotingCommand | None:
        """Return the answer of the master; None if it has not received the request."""
        if not self._may_pass(request):
            return None
        loop = asyncio.get_running_loop()
        while (left_s := expiry(request) - loop.time()) > 0 and self.hold is None:
            answer = await self._attempt(request, left_s)
            if answer is not None or not self._in_group:
                return answer
            await asyncio.sleep(RETRY_S)
        return None

    async def _attempt(self, request: RemotingCommand, left_s: float) -> RemotingCommand | None:
        """Ask the master once; return None if it has not received the request, or is not a
        master."""
        master = self._master()
        if master is None:
            return None
        copy = replace(request, flag=request.flag & ~CommandFlag.ONE_WAY, remark=RELAYED)
        try:
            answer = await self._client.request(master, copy, left_s)
        except NotConnectedError:
            return None
        except OSError as error:
            return request.answer(
                ResponseCode.SYSTEM_ERROR,
                f"the request was passed on to the master {master}, which has not answered: "
                f"{error}; it may have been executed",
            )
        refusal = not_master(request)
        if (answer.code, answer.remark) == (refusal.code, refusal.remark):
            return None  # it is not the master yet
        return replace(answer, opaque=request.opaque, serialize=request.serialize)

    # -- commits in pulls ---------------------------------------------------------------------

    def commit_later(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Pass the commit in a pull on, without making the pull wait.

        Args:
            group: The consumer group.
            topic: The topic.
            queue_id: The number of the queue.
            offset: The offset; a negative one means that the client does not know it.
        """
        key = group, topic, queue_id
        if offset < 0 or (len(self._commits) >= COMMITS_MAX and key not in self._commits):
            return
        self._commits[key] = offset
        if self._committing is None:
            self._committing = asyncio.get_running_loop().create_task(self._commit())

    async def _commit(self) -> None:
        try:
            while self._commits:
                (group, topic, queue_id), offset = next(iter(self._commits.items()))
                del self._commits[group, topic, queue_id]
                header = ConsumerOffsetHeader(group, topic, queue_id, offset)
                code = RequestCode.UPDATE_CONSUMER_OFFSET
                command = RemotingCommand(code, header.encode(), remark=RELAYED)
                master = self._master()
                if master is not None:
                    await self._own.ask(master, command, CHANGE_S)
        except (OSError, FiretrailError) as error:  # consumers commit again
            self._commits.clear()
            self._limited_log.log(
                logging.WARNING, "commits", f"offsets in pulls could not be passed on: {error}"
            )
        finally:
            self._committing = None


def expiry(request: RemotingCommand) -> float:
    """Return the time of the loop until which a request may wait; the first call sets it."""
    if request.expires_at is None:
        request.expires_at = asyncio.get_running_loop().time() + CHANGE_S
    return request.expires_at


def not_master(request: RemotingCommand) -> RemotingCommand:
    """Return the refusal of a request by a member of a group that is not the master."""
    unknown = ResponseCode.SYSTEM_BUSY, NO_MASTER
    return request.answer(*REFUSED_BY_SLAVES.get(request.code, unknown))


def _now(answer: Answer) -> RemotingCommand | None:
    """Return an answer as an awaitable that is complete."""
    assert answer is None or isinstance(answer, RemotingCommand)
    return answer
