"""Truth values as text mean the same to all who read them."""

import json
from datetime import UTC

import pyarrow as pa
import pytest

from firetrail.access.plain.plain_accounts import PlainAccount
from firetrail.access.rules import RULES, ReceivedRequest
from firetrail.auth.resources import Action, Requirement
from firetrail.broker.filter.sql92 import parse
from firetrail.errors import ProtocolError
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.message_types import is_transactional, waits_for_disk
from firetrail.format.properties import INNER_MULTI_DISPATCH, encode_properties
from firetrail.format.values.truths import is_true, truth_in, truth_text
from firetrail.pipeline.decoding.events.mysql_types import canal_reader, mysql_type
from firetrail.pipeline.decoding.values.text_values import BodyError, Converter, from_text
from firetrail.remoting.messages.admin.admin_headers import RunningInfoHeader
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.messages.headers import SendHeader
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.settings_table import Flag

TRUE = ("true", "True", "TRUE", "tRuE")
FALSE = ("false", "False", "FALSE", "fAlSe")
OTHER = ("", " true", "true ", "1", "0", "yes", "null")


@pytest.mark.parametrize("text", [*TRUE, *FALSE, *OTHER])
def test_a_text_is_true_or_not(text: str) -> None:
    """As for Java's ``Boolean.parseBoolean``."""
    found = [
        is_true(text),
        is_transactional({"TRAN_MSG": text}),
        waits_for_disk({"WAIT": text}),
        parse("a = TRUE").matches({"a": text}),
        PlainAccount.of({"accessKey": "u" * 7, "secretKey": "s" * 7, "admin": text}).is_admin,
    ]
    if text != text.strip():  # blanks in a file of accounts do not count
        found.pop()
    assert found == [text in TRUE] * len(found)


@pytest.mark.parametrize("text", [*TRUE, *FALSE, *OTHER])
def test_a_field_of_a_request_is_true_or_not(text: str) -> None:
    """As in RocketMQ, but clients in C++ write 1 for a batch."""
    header = SendHeader("g", "T", "TBW102", 4, 0, 0, 1, 0).encode() | {"batch": text}
    light = encode_properties({INNER_MULTI_DISPATCH: "%LMQ%a"})
    batch = encode_batch([BatchItem(0, b"x", light)])
    send = RemotingCommand(RequestCode.SEND_MESSAGE, header, batch)
    running = RunningInfoHeader("g", "c").encode() | {"jstackEnable": text}
    stacks = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, running)
    found = [
        SendHeader.decode(header).batch,
        SendHeader._decode_carefully(header).batch,
        len(needs_of(send)) == 2,  # those of the light queues in the batch, too
        Action.UPDATE in needs_of(stacks)[0].actions,
    ]
    assert found == [text in (*TRUE, "1")] * len(found)


def needs_of(request: RemotingCommand) -> list[Requirement]:
    return list(RULES[request.code].needs(ReceivedRequest(request, "C1")))


BODIES: dict[bool | None, list[object]] = {
    True: [*TRUE, "1", 1, True],
    False: [*FALSE, "0", 0, False],
    None: ["", " true", "yes", "null", 2, -1, 1.0, 0.0, [], {}],
}


@pytest.mark.parametrize(
    ("value", "truth"), [(value, truth) for truth, values in BODIES.items() for value in values]
)
def test_a_value_in_a_body_is_true_or_false(value: object, truth: bool | None) -> None:
    """As in RocketMQ's library for JSON; but another number or text is not taken for false."""
    body = json.dumps({"groupName": "g", "consumeEnable": value}).encode()
    if truth is None:
        with pytest.raises(ProtocolError, match="consumeEnable must be true or false"):
            SubscriptionGroupConfig.decode(body)
    else:
        assert SubscriptionGroupConfig.decode(body).consume_enable is truth


@pytest.mark.parametrize("text", [*TRUE, *FALSE, *OTHER])
def test_a_setting_is_true_or_false(text: str) -> None:
    """Any other text would be false in Java, without a word."""
    value = truth_in(text)
    assert value is (None if text in OTHER else text in TRUE)
    if value is None:
        with pytest.raises(ValueError, match="true or false"):
            Flag().parse(text)
    else:
        assert Flag().parse(text) is value
        assert Flag().show(value) == truth_text(value) == text.lower()


@pytest.mark.parametrize("text", [*TRUE, *FALSE, *OTHER])
def test_a_value_of_a_table_is_true_or_false(text: str) -> None:
    """A ``tinyint(1)`` of MySQL may also be a number."""
    for kind in ("boolean", "tinyint"):
        read = text_reader(kind)
        if text in (*TRUE, *FALSE):
            assert read(text) == (text in TRUE)
        elif kind == "boolean" or text not in ("0", "1"):
            with pytest.raises(BodyError):
                read(text)


def text_reader(kind: str) -> Converter:
    if kind == "tinyint":
        return canal_reader(mysql_type("tinyint(1)"), UTC, zero_nulls=True)
    read = from_text(pa.bool_(), UTC)
    assert read is not None
    return read
