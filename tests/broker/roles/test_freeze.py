"""A master that is about to hand over changes neither its log nor its tables."""

import asyncio

import pytest
from tests.broker.brokers import Talk, talking
from tests.broker.test_every_request import ALL_GOOD, GOOD_BODIES

from firetrail.remoting.messages.requests import REQUESTS, RequestTarget
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

COPIED = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)
"""The tables that a successor copies from a frozen master."""
SETTINGS = b"autoCreateTopicEnable=false\n"
CODES = [
    *(code for code, row in REQUESTS.items() if row.target is RequestTarget.BROKER),
]


async def tables(talk: Talk) -> dict[int, bytes]:
    found: dict[int, bytes] = {code: (await talk.ask(code)).content for code in COPIED}
    found[0] = b"%d" % talk.broker.store.log_range[1]
    return found


async def ask(talk: Talk, code: int) -> list[asyncio.Future[RemotingCommand]]:
    """Send a request about topics and groups that exist, and others; return what answers it."""
    handler = talk.broker._terms._handlers.get(code)
    if handler is None:
        return []
    answers: list[asyncio.Future[RemotingCommand]] = []
    body = SETTINGS if code == RequestCode.UPDATE_BROKER_CONFIG else b""
    if code in GOOD_BODIES:
        body = GOOD_BODIES[RequestCode(code)].encode()
    for topic in ("T1", "T2"):
        fields = ALL_GOOD | {"topic": topic, "b": topic, "sysFlag": "5", "commitOffset": "1"}
        asked = RemotingCommand(code, fields, body)
        answers.append(asyncio.ensure_future(talk.client.request(talk.broker.address, asked, 1.0)))
    await asyncio.wait(answers, timeout=0.05)
    return answers


@pytest.mark.parametrize("code", CODES)
async def test_no_request_changes_a_frozen_master(code: int) -> None:
    async with talking() as talk:
        await talk.send("T1")
        before = await tables(talk)
        await talk.broker.freeze("a test")
        answers = await ask(talk, code)
        assert await tables(talk) == before
        talk.broker.thaw()
        await asyncio.gather(*answers, return_exceptions=True)
