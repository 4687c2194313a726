"""Feeds what peers may send, made up by atheris, to everything that decodes it.

Each decoder has one error that it may raise; anything else that comes out is a bug, and ends the
run with the input that caused it. ``make fuzz`` runs it for a minute, ``make fuzz FUZZ_S=3600``
for an hour. A finding is repeated with its file: ``.venv-fuzz/bin/python fuzz/wire.py crash-…``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import atheris

with atheris.instrument_imports(include=["firetrail"]):
    from firetrail.broker.filter import sql92
    from firetrail.broker.state import attributes
    from firetrail.client import compression
    from firetrail.errors import (
        ConfigError,
        FormatError,
        ProtocolError,
        RequestError,
    )
    from firetrail.format import config_json
    from firetrail.format.batch import decode_batch
    from firetrail.format.java_properties import parse_properties
    from firetrail.format.properties import decode_properties
    from firetrail.remoting import (
        admin_bodies,
        admin_headers,
        bodies,
        headers,
        json_header,
        pop_bodies,
        pop_headers,
    )
    from firetrail.remoting.body import Body
    from firetrail.remoting.codes import Serialize
    from firetrail.remoting.command import RemotingCommand
    from firetrail.remoting.frames import FrameReader, decode_frame, encode_frame
    from firetrail.remoting.header import Header
    from firetrail.remoting.kernels.wire import JsonWriter, read_json_header
    from firetrail.remoting.receipts import Receipt, decode_places
    from firetrail.remoting.registration import decode_registration

Target = Callable[[bytes], None]
Kind = TypeVar("Kind")


def all_of(kind: type[Kind], *modules: object) -> list[type[Kind]]:
    """The subclasses of ``kind`` in some modules, in order."""
    found = [v for m in modules for v in vars(m).values() if isinstance(v, type)]
    return sorted({v for v in found if issubclass(v, kind) and v is not kind}, key=str)


WRITER = JsonWriter()
BODIES = all_of(Body, bodies, admin_bodies, pop_bodies)
HEADERS = all_of(Header, headers, admin_headers, pop_headers)


def stream(data: bytes) -> None:
    """Bytes of a connection in pieces; what comes whole is written and read again."""
    reader = FrameReader()
    size = 1 + (data[0] if data else 0)
    for at in range(1, len(data), size):
        for command in reader.feed(data[at : at + size]):
            again(command)


def again(command: RemotingCommand) -> None:
    """A command that was read can be answered, and reads as it was when it is written."""
    decode_frame(b"".join(map(bytes, encode_frame(command.answer(1, command.remark)))))
    if command.remark != "":  # which the binary form cannot tell from none
        copy = decode_frame(b"".join(map(bytes, encode_frame(command))))
        assert (copy.code, copy.opaque, copy.body) == (command.code, command.opaque, command.body)


def framed(kind: Serialize) -> Target:
    """A whole frame with a header of anything."""

    def target(data: bytes) -> None:
        mark = kind << 24 | len(data)
        frame = (4 + len(data)).to_bytes(4, "big") + mark.to_bytes(4, "big") + data
        again(decode_frame(frame))

    return target


def plain_json_header(data: bytes) -> None:
    """The JSON header as it is read where orjson is not installed."""
    fast, json_header._LOADS = json_header._LOADS, json.loads
    try:
        json_header.decode_carefully(data, b"")
    finally:
        json_header._LOADS = fast


def quick_json_header(data: bytes) -> None:
    """The kernel that reads headers: what it understands, it understands as the others do."""
    quick = read_json_header(data, b"", json_header._LANGUAGES, Serialize.JSON)
    careful = json_header.decode_carefully(data, b"")  # raises for what is none
    if quick is not None:
        assert RemotingCommand(*quick) == careful, f"{quick} and {careful}"
    written = WRITER.frame(
        careful.code,
        careful.fields,
        careful.flag,
        json_header._NAMES[careful.language],
        careful.opaque,
        careful.remark,
        careful.version,
        0,
    )
    if written is not None:
        assert json_header.decode_carefully(written[8:], b"") == careful


def accepted_alone(data: bytes) -> None:
    """The kernel takes no header that the careful way refuses."""
    if read_json_header(data, b"", json_header._LANGUAGES, Serialize.JSON) is not None:
        try:
            json_header.decode_carefully(data, b"")
        except ProtocolError as error:
            raise AssertionError("taken by the kernel alone") from error


def body(data: bytes) -> None:
    """A body of some request, written and read again if it is one."""
    if data:
        kind = BODIES[data[0] % len(BODIES)]
        found = kind.decode(data[1:])
        assert kind.decode(found.encode()) == found or b"NaN" in data or b"nfinity" in data


def header(data: bytes) -> None:
    """The fields of some request: names and values, one a line."""
    if data:
        kind = HEADERS[data[0] % len(HEADERS)]
        lines = data[1:].decode("utf-8", "surrogateescape").split("\n")
        fields = dict(zip(lines[::2], lines[1::2], strict=False))
        found = kind.decode(fields)
        assert found == kind._decode_carefully(fields)
        assert kind.decode(found.encode()) == found


def sql(data: bytes) -> None:
    """A filter over properties, applied to some."""
    text, _, properties = data.partition(b"\n")
    wanted = sql92.parse(text.decode("utf-8", "replace"))
    wanted.matches(decode_properties(properties))


def compressed(data: bytes) -> None:
    """A compressed body."""
    if data:
        compression.inflated(data[1:], data[0] % 8 << 8 | 1)


def text(function: Callable[[str], object]) -> Target:
    """Something that reads text."""
    return lambda data: (function(data.decode("utf-8", "replace")), None)[1]


changes, properties = text(attributes.parse), text(parse_properties)
receipt, places = text(Receipt.decode), text(decode_places)
json_frame, binary_frame = framed(Serialize.JSON), framed(Serialize.ROCKETMQ)
TARGETS: tuple[tuple[Target, type[Exception]], ...] = (
    (stream, ProtocolError),
    (json_frame, ProtocolError),
    (binary_frame, ProtocolError),
    (plain_json_header, ProtocolError),
    (quick_json_header, ProtocolError),
    (accepted_alone, ProtocolError),
    (body, ProtocolError),
    (header, RequestError),
    (lambda data: (decode_registration(data, compressed=False), None)[1], ProtocolError),
    (lambda data: (decode_registration(data, compressed=True), None)[1], ProtocolError),
    (lambda data: (decode_batch(data), None)[1], FormatError),
    (lambda data: (config_json.loads(data), None)[1], FormatError),
    (sql, FormatError),
    (compressed, FormatError),
    (changes, RequestError),
    (properties, ConfigError),
    (receipt, RequestError),
    (places, RequestError),
)


def examples() -> Iterator[tuple[Target, bytes]]:
    """Good input for targets."""
    command = RemotingCommand(310, {"a": "PG", "b": "T1", "e": "0"}, b"body", "why", 7)
    yield stream, b"\x05" + b"".join(map(bytes, encode_frame(command)))
    for target in (json_frame, plain_json_header, quick_json_header, accepted_alone):
        yield target, json_header.encode(command)
    command.serialize = Serialize.ROCKETMQ
    yield binary_frame, bytes(encode_frame(command)[0])[8:]
    beat = bodies.HeartbeatData("c", [], [bodies.ConsumerData("G")])
    yield body, bytes([BODIES.index(bodies.HeartbeatData)]) + beat.encode()
    yield header, b"\0topic\nT1\nqueueId\n0"
    yield sql, b"a > 1 AND b IN ('x') OR NOT c IS NULL AND d BETWEEN 1 AND 2.5\na\x012\x02b\x01x"
    yield changes, b"+message.type=FIFO,-reserve.time"
    yield properties, b"a = 1\\\n  2\n# c\nb:\\u0041"
    yield receipt, b"17 1700000000000 60000 3 1 broker-a 2 19"
    yield places, b"0 3 17,18;1 0 4"


def one(data: bytes) -> None:
    """Give the input to the target that its first byte names."""
    if data:
        target, allowed = TARGETS[data[0] % len(TARGETS)]
        with suppress(allowed):
            target(data[1:])


def main() -> None:
    """Begin with the examples in a folder that libFuzzer goes on with."""
    for argument in sys.argv[1:]:
        folder = Path(argument)
        if folder.is_dir():
            numbers = {target: number for number, (target, _) in enumerate(TARGETS)}
            for number, (target, example) in enumerate(examples()):
                (folder / f"example-{number}").write_bytes(bytes([numbers[target]]) + example)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
