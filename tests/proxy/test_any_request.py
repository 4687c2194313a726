"""Any request is answered with a code; none fails with an unexpected error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.proxy.services import FakeCall, Service, serving

from firetrail.proxy import polling
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import Code

EXAMPLES = 150
WORDS = ["", "T", "F", "X", "CG", "broker-a", "*", "a || b", "x" * 200, "\x01", " ", "KEYS", "ü"]
NUMBERS = [0, 1, -1, 5, 32, 1000, 2**31 - 1, -(2**31)]
LONGS = [*NUMBERS, 2**63 - 1, -(2**63), 2**40]


def values(field: Any, depth: int) -> st.SearchStrategy[Any]:
    """The values of a field: likely ones, extreme ones, and any."""
    if field.message_type is not None:
        return requests(field.message_type, depth + 1)
    if field.enum_type is not None:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 77])
    if field.cpp_type == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return st.binary(max_size=20)
        return st.sampled_from(WORDS) | st.text(max_size=20)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        return st.sampled_from(LONGS)
    if field.cpp_type == field.CPPTYPE_FLOAT:
        return st.floats(width=32)
    return st.sampled_from(NUMBERS)


def requests(descriptor: Any, depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """The fields of any message of a type, as far as they are not nested too deeply."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fields[field.name] = st.dictionaries(st.sampled_from(WORDS), st.text(max_size=9))
        elif field.is_repeated:
            fields[field.name] = st.lists(values(field, depth), max_size=2)
        elif depth < 4 or field.message_type is None:
            fields[field.name] = values(field, depth)
    return st.fixed_dictionaries({}, optional=fields)


def request_of(name: str) -> st.SearchStrategy[Any]:
    kind = getattr(messages, name)
    return requests(kind.DESCRIPTOR).map(lambda fields: kind(**fields))


def handlers(service: Service) -> list[tuple[Callable[..., Any], str]]:
    return [
        (service.sending.send, "SendMessage"),
        (service.receiving.receive, "ReceiveMessage"),
        (service.receipts.ack, "AckMessage"),
        (service.receipts.change, "ChangeInvisibleDuration"),
        (service.receipts.forward, "ForwardMessageToDeadLetterQueue"),
        (service.transactions.end, "EndTransaction"),
        (service.offsets.pull, "PullMessage"),
        (service.offsets.update, "UpdateOffset"),
        (service.offsets.get, "GetOffset"),
        (service.offsets.query, "QueryOffset"),
    ]


NAMES = [
    *("SendMessage", "ReceiveMessage", "AckMessage", "ChangeInvisibleDuration", "EndTransaction"),
    *("ForwardMessageToDeadLetterQueue", "PullMessage", "UpdateOffset", "GetOffset"),
    "QueryOffset",
]
CALLS = st.one_of(*(st.tuples(st.just(name), request_of(f"{name}Request")) for name in NAMES))


def test_any_request_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(polling, "POLL_MIN_S", 0.0)
    monkeypatch.setattr(polling, "POLL_MAX_S", 0.0)
    loop = asyncio.new_event_loop()
    running = serving()
    service = loop.run_until_complete(running.__aenter__())
    for topic, kind in (("T", ""), ("F", "FIFO"), ("X", "MIXED")):
        loop.run_until_complete(service.create_topic(topic, kind))
    by_name = {name: handle for handle, name in handlers(service)}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(CALLS, st.sampled_from([None, 0.0, 100.0]), st.text(max_size=9))
    def answered(call: tuple[str, Any], left_s: float | None, version: str) -> None:
        name, request = call
        caplog.clear()
        response = loop.run_until_complete(answer(by_name[name], name, request, left_s, version))
        first = response[0] if isinstance(response, Sequence) else response
        assert Code(first.status.code) is not Code.CODE_UNSPECIFIED
        unexpected = [each for each in caplog.records if each.exc_info]
        assert not unexpected, unexpected[0].exc_text

    async def answer(
        handle: Callable[..., Any], name: str, request: Any, left_s: float | None, version: str
    ) -> Any:
        service.fake_call = lambda: FakeCall(left_s, x_mq_client_version=version)
        kind = getattr(messages, f"{name}Response")
        return await service.answer(handle, kind, request)

    try:
        with caplog.at_level(logging.WARNING):
            answered()
    finally:
        loop.run_until_complete(running.__aexit__(None, None, None))
        loop.close()
