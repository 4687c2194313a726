"""Answers that grow with what a server keeps."""

import threading
from collections.abc import Awaitable

import pytest

from firetrail.errors import RequestError
from firetrail.remoting.servers.large_answers import ANSWER_MAX, FEW, answer_with
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

REQUEST = RemotingCommand(RequestCode.GET_ALL_PRODUCER_INFO)


def encode() -> bytes:
    return threading.current_thread().name.encode()


def test_a_small_one_is_encoded_at_once() -> None:
    answer = answer_with(REQUEST, encode, FEW)
    assert isinstance(answer, RemotingCommand)
    assert answer.content.decode() == threading.current_thread().name


async def test_a_large_one_is_encoded_by_another_thread() -> None:
    waiting = answer_with(REQUEST, encode, FEW + 1)
    assert isinstance(waiting, Awaitable)
    answer = await waiting
    assert answer is not None
    assert answer.content.decode() != threading.current_thread().name


@pytest.mark.parametrize("entries", [1, FEW + 1])
async def test_one_that_clients_do_not_accept_is_refused(entries: int) -> None:
    with pytest.raises(RequestError) as refused:
        waiting = answer_with(REQUEST, lambda: bytes(ANSWER_MAX + 1), entries)
        assert isinstance(waiting, Awaitable)
        await waiting
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert refused.value.remark == (
        "the answer to GET_ALL_PRODUCER_INFO has 16.0 MiB, but clients accept 16.0 MiB; ask for "
        "single topics or groups"
    )
