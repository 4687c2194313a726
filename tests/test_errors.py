"""The error tree: messages, attributes, pickling, and the drawing in the docstring."""

import pickle
import re

import pytest

from firetrail import errors
from firetrail.errors import (
    AddressInUseError,
    ConfigError,
    FiretrailError,
    FormatError,
    GrpcError,
    IllegalMessageError,
    NoAnswerError,
    NoMasterYetError,
    NotReachedError,
    ProxyError,
    RequestError,
    StoreDamagedError,
    StoreError,
    WrongTypeError,
)
from firetrail.remoting.wire.codes import ResponseCode

DAMAGED = StoreDamagedError("commitlog/0", 332, 332, "body CRC differs", "run firetrail fsck")

SAMPLES = [
    (
        FormatError("properties length", 120, "40000 is more than 32767"),
        "properties length at offset 120: 40000 is more than 32767",
    ),
    (ConfigError("fileReservedTime", -1, "at least 1"), "fileReservedTime = -1: at least 1"),
    (WrongTypeError("count", "1", "expected a number"), "count = '1': expected a number"),
    (ConfigError("count", 10**5000, "too large"), "count = a very large int: too large"),
    (ConfigError("body", bytes(1000), "too long"), f"body = {bytes(1000)!r:.200}…: too long"),
    (DAMAGED, "commitlog/0 at offset 332 (record 332): body CRC differs; run firetrail fsck"),
    (
        StoreDamagedError("checkpoint", 0, None, "12 bytes long", "remove it"),
        "checkpoint at offset 0: 12 bytes long; remove it",
    ),
    (IllegalMessageError("topic", "is empty"), "topic: is empty"),
    (GrpcError(12, "no such method"), "gRPC status 12: no such method"),
    (StoreError("no room"), "no room"),
    (ProxyError(40002, "the topic is blank"), "code 40002: the topic is blank"),
    (NotReachedError("a:1: refused"), "a:1: refused"),
    (NoAnswerError("a:1: no answer within 3 s"), "a:1: no answer within 3 s"),
    (AddressInUseError("a:1: the port is in use"), "a:1: the port is in use"),
]


def error_classes() -> list[type[Exception]]:
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]


@pytest.mark.parametrize(("error", "message"), SAMPLES)
def test_errors_have_their_messages(error: FiretrailError, message: str) -> None:
    assert str(error) == message


@pytest.mark.parametrize("error", [sample for sample, _ in SAMPLES])
def test_pickling_keeps_message_and_attributes(error: FiretrailError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_errors_keep_their_arguments() -> None:
    assert (DAMAGED.file, DAMAGED.offset, DAMAGED.physical_offset) == ("commitlog/0", 332, 332)
    assert (DAMAGED.detail, DAMAGED.remedy) == ("body CRC differs", "run firetrail fsck")


def test_all_errors_have_one_base_class() -> None:
    for error in error_classes():
        assert issubclass(error, FiretrailError)
    assert issubclass(FormatError, ValueError)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(NotReachedError, ConnectionError)
    assert issubclass(NoAnswerError, TimeoutError)
    assert issubclass(AddressInUseError, OSError)


def test_the_drawing_shows_every_error() -> None:
    drawn = re.findall(r"\b(\w+Error)\b {2,}|─ (\w+Error)\b|^ {4}(\w+Error)$", errors.__doc__, re.M)
    names = {name for groups in drawn for name in groups if name}
    assert names == {error.__name__ for error in error_classes()}


def test_the_drawing_marks_the_errors_that_are_retriable() -> None:
    marked = set(re.findall(r"(\w+Error)\b[^\n]*retry later", errors.__doc__ or ""))
    classes = [error for error in error_classes() if issubclass(error, FiretrailError)]
    retriable = {error.__name__ for error in classes if error.retriable}
    assert NoMasterYetError(17, "T").retriable  # decided per instance, as for every RequestError
    assert retriable | {"NoRouteYetError", "NoMasterYetError"} == marked


def test_a_request_error_is_retriable_by_its_code() -> None:
    names = {"SYSTEM_ERROR", "SYSTEM_BUSY", "SERVICE_NOT_AVAILABLE", "FLOW_CONTROL"}
    assert {code.name for code in ResponseCode if RequestError(code, "").retriable} == names
