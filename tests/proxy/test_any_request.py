"""Any request with any metadata is answered with a code; none fails with an unexpected error."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.brokers import SMALL
from tests.proxy.fakes import FakeCall

from firetrail.broker.broker import Broker
from firetrail.proxy.calls import wait_time
from firetrail.proxy.calls.messaging_service import SERVICE, MessagingService
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import Code
from firetrail.proxy.transport.call import StreamMethod
from firetrail.proxy.upstream.embedded import EmbeddedBroker
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.system import SYSTEM

EXAMPLES = 100
WORDS = ["", "T", "F", "X", "CG", "broker-a", "*", "a || b", "x" * 200, "\x01", " ", "KEYS", "ü"]
NUMBERS = [0, 1, -1, 5, 32, 1000, 2**31 - 1, -(2**31)]
LONGS = [*NUMBERS, 2**63 - 1, -(2**63), 2**40]
TELEMETRY = "Telemetry"
HEADERS = ("client-id", "language", "client-version", "namespace", "request-id", "date-time")


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


def calls() -> st.SearchStrategy[tuple[str, Any]]:
    schema = messages.POOL.FindServiceByName("apache.rocketmq.v2.MessagingService")
    return st.one_of(
        *(
            st.tuples(st.just(name), requests(method.input_type))
            for name, method in schema.methods_by_name.items()
            if name != TELEMETRY
        )
    )


METADATA = st.just({"x-mq-client-id": "c1"}) | st.dictionaries(
    st.sampled_from(HEADERS).map(lambda name: f"x-mq-{name}"), st.text(max_size=9)
)


def test_any_request_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wait_time, "POLL_MIN_S", 0.0)
    monkeypatch.setattr(wait_time, "POLL_MAX_S", 0.0)
    with asyncio.Runner() as runner:
        running = Broker.running(None, None, SMALL)
        broker = runner.run(running.__aenter__())
        service = runner.run(_service(broker))

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(calls(), METADATA, st.sampled_from([None, 0.0, 100.0]))
        def answered(
            call: tuple[str, dict[str, Any]], metadata: dict[str, str], left_s: float | None
        ) -> None:
            caplog.clear()
            response = runner.run(_answer(service, *call, metadata, left_s))
            first = response[0] if isinstance(response, Sequence) else response
            assert Code(first.status.code) is not Code.CODE_UNSPECIFIED
            unexpected = [each for each in caplog.records if each.exc_info]
            assert not unexpected, unexpected[0].exc_text

        try:
            with caplog.at_level(logging.WARNING):
                answered()
        finally:
            runner.run(service.stop())
            runner.run(running.__aexit__(None, None, None))


async def _service(broker: Broker) -> MessagingService:
    types = {"T": None, "F": {"+message.type": "FIFO"}, "X": {"+message.type": "MIXED"}}
    for name, attributes in types.items():
        broker.topics.put([TopicConfig(name, 4, 4, attributes=attributes)])
    return MessagingService(EmbeddedBroker(broker), SYSTEM.clock)


async def _answer(
    service: MessagingService,
    name: str,
    fields: dict[str, Any],
    metadata: dict[str, str],
    left_s: float | None,
) -> Any:
    method = service.methods[SERVICE + name]
    assert not isinstance(method, StreamMethod)
    call = FakeCall(metadata)
    call.left_s = left_s
    answer: Any = method.handle(call, method.request(**fields))
    return await resolved(answer)
