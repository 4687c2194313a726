"""The wire format of protobuf, compared with its objects."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.proxy.services import Service, code, message

from firetrail.format.values.integers import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
from firetrail.proxy.conversion.protobuf_wire import field, int64, key_of, varint
from firetrail.proxy.schema.messages import SendResultEntry, SystemProperties
from firetrail.remoting.messages.headers import SendResponse
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

LARGE = st.integers(INT64_MIN, INT64_MAX)
SMALL = st.integers(INT32_MIN, INT32_MAX)


@given(LARGE | st.integers(-300, 300))
@example(INT64_MIN)
@example(INT64_MAX)
def test_numbers_of_64_bits(number: int) -> None:
    encoded = key_of(SendResultEntry, "offset") + int64(number)
    expected = SendResultEntry(offset=number)
    assert SendResultEntry.FromString(encoded) == expected
    assert not number or encoded == expected.SerializeToString()
    assert varint(number) == int64(number)


@given(SMALL | st.integers(-300, 300))
@example(INT32_MIN)
@example(INT32_MAX)
def test_numbers_of_32_bits(number: int) -> None:
    encoded = key_of(SystemProperties, "queue_id") + varint(number)
    assert SystemProperties.FromString(encoded).queue_id == number


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_texts(text: str) -> None:
    encoded = field(key_of(SendResultEntry, "message_id"), text.encode())
    assert SendResultEntry.FromString(encoded).message_id == text


@pytest.mark.parametrize("offset", [-1, 0, 1, 300, INT64_MAX, INT64_MIN])
async def test_a_send_has_the_offset_that_the_broker_answers(service: Service, offset: int) -> None:
    fields = SendResponse("id", 0, offset).encode()
    service.brokers.replaced[RequestCode.SEND_MESSAGE_V2] = RemotingCommand(0, fields)
    answer = await service.send(message())
    assert code(answer) == "OK"
    assert answer.entries[0].offset == offset
