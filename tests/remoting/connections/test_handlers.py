"""Answers that follow from a later result, and handlers whose requests wait first."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

import pytest
from tests.client.clusters import until
from tests.remoting.loopbacks import ECHO, HANDLERS, echo, serving

from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import LaterAnswer, WaitingHandler
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

LATER = 7


class Result:
    """A text that is known later."""

    def __init__(self) -> None:
        self._future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._callbacks: list[Callable[[str], None]] = []

    def then(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    def __await__(self) -> Generator[Any, None, str]:
        return self._future.__await__()

    def set(self, text: str) -> None:
        self._future.set_result(text)
        for callback in self._callbacks:
            callback(text)


class Handler:
    """Answers with texts that are known later; ``error`` is a text that it cannot answer with."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    def __call__(self, connection: Connection, request: RemotingCommand) -> LaterAnswer:
        self.results.append(Result())

        def answer(text: str) -> RemotingCommand:
            if text == "error":
                raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
            return request.answer(remark=text)

        return LaterAnswer(request, self.results[-1], answer)


async def test_answers_are_given_in_the_order_of_their_results() -> None:
    handler = Handler()
    async with serving(handlers=HANDLERS | {LATER: handler}) as loopback:
        first, second = (asyncio.create_task(loopback.ask(LATER)) for _ in range(2))
        await until(lambda: len(handler.results) == 2)
        handler.results[1].set("second")
        assert (await second).remark == "second"
        assert (await loopback.ask(ECHO)).code == 0
        assert not first.done()
        handler.results[0].set("error")
        assert (await first).code == ResponseCode.TOPIC_NOT_EXIST
        assert not loopback.server.running[LATER]


async def test_an_answer_that_is_given_later_waits_for_its_record() -> None:
    handler = Handler()
    recorded: list[Future[None]] = []

    def record(*_: object) -> Future[None]:
        recorded.append(Future())
        return recorded[-1]

    async with serving(audit=record, handlers=HANDLERS | {LATER: handler}) as loopback:
        answer = asyncio.create_task(loopback.ask(LATER))
        await until(lambda: handler.results)
        assert not recorded
        handler.results[0].set("done")
        assert not answer.done()
        recorded[0].set_result(None)
        assert (await answer).remark == "done"


async def test_a_drain_waits_for_answers() -> None:
    handler = Handler()
    async with serving(handlers=HANDLERS | {LATER: handler}) as loopback:
        answer = asyncio.create_task(loopback.ask(LATER))
        await until(lambda: handler.results)
        drain = asyncio.create_task(loopback.server.drain(60.0))
        await asyncio.sleep(0.02)
        assert not drain.done()
        handler.results[0].set("done")
        await drain
        assert (await answer).remark == "done"


@pytest.mark.parametrize(("text", "code"), [("yes", 0), ("error", ResponseCode.TOPIC_NOT_EXIST)])
async def test_an_answer_can_be_awaited(text: str, code: int) -> None:
    handler = Handler()
    answer = handler(None, RemotingCommand(LATER))  # type: ignore[arg-type]
    handler.results[0].set(text)
    given = await answer
    assert given is not None
    assert given.code == code


async def test_costly_requests_take_turns_after_they_have_waited() -> None:
    """Each is charged to its address, and others run in between."""
    ready = asyncio.get_running_loop().create_future()
    waited: list[None] = []
    ran: list[int] = []
    iteration = 0

    def wait() -> asyncio.Future[None] | None:
        waited.append(None)
        return ready

    def handle(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        ran.append(iteration)
        return request.answer()

    costly = RequestCode.GET_TOPIC_STATS_INFO
    async with serving(handlers={costly: WaitingHandler(wait, handle)}) as loopback:
        asked = [asyncio.create_task(loopback.ask(costly)) for _ in range(5)]
        await until(lambda: len(waited) == 5)
        assert not ran
        ready.set_result(None)
        while len(ran) < 5:
            iteration += 1
            await asyncio.sleep(0)
        assert [answer.code for answer in await asyncio.gather(*asked)] == [
            ResponseCode.SUCCESS
        ] * 5
    assert len(set(ran)) == 5, "one in each iteration of the event loop"


async def test_a_request_that_need_not_wait_is_handled_at_once() -> None:
    async with serving(handlers={ECHO: WaitingHandler(lambda: None, echo)}) as loopback:
        answer = await loopback.ask(ECHO, body=b"x")
        assert answer.content == b"x"
