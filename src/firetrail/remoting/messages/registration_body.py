"""The body of a broker's registration, which has a compressed form besides JSON.

The compressed form is a zlib stream of::

    size 4   DataVersion, JSON
    topics 4, then each:   size 4   "name readQueues writeQueues perm filterType[ attributes]"
    size 4   addresses of filter servers, a JSON list
    [mapped queues, sent by brokers since 5.0]

It does not contain the order flag and the system flag of a topic.
"""

import json
import zlib
from struct import pack, unpack_from

from firetrail.errors import ProtocolError
from firetrail.format.files import config_json
from firetrail.format.values.integers import parse_whole
from firetrail.remoting.messages.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)
from firetrail.remoting.messages.typed_body import loads

REGISTERED_MAX = 200_000
"""Maximum number of topics in a compressed body."""
INFLATED_MAX = 32 << 20
"""Maximum size of a decompressed body, enough for this number of topics."""


def checksum(raw: bytes) -> int:
    """Return the ``bodyCrc32`` of a header, for the bytes of the body as they are sent."""
    return zlib.crc32(raw) & 0x7FFFFFFF


def encode_registration(body: RegisterBrokerBody, *, compressed: bool = False) -> bytes:
    """Encode the body as JSON or in the compressed form."""
    if not compressed:
        return body.encode()
    table = body.topic_config_serialize_wrapper
    servers = config_json.compact(body.filter_server_list)
    return zlib.compress(
        b"".join(
            [
                _sized(table.data_version.encode()),
                pack(">i", len(table.topic_config_table)),
                *(_sized(_topic_text(t).encode()) for t in table.topic_config_table.values()),
                _sized(servers.encode()),
            ]
        )
    )


def decode_registration(raw: bytes, *, compressed: bool) -> RegisterBrokerBody:
    """Decode a body; raise ProtocolError if it is invalid, or too large when decompressed."""
    if not compressed:
        return RegisterBrokerBody.decode(raw) if raw else RegisterBrokerBody()
    pieces = _Pieces(_inflated(raw))
    version = DataVersion.decode(pieces.sized())
    count = pieces.number()
    if count > REGISTERED_MAX:
        raise ProtocolError(f"{count} topics in a registration; {REGISTERED_MAX} are allowed")
    topics = [_topic(pieces.sized()) for _ in range(count)]
    servers = loads(pieces.sized(), "the filter servers")
    table = TopicConfigTable({topic.topic_name: topic for topic in topics}, version)
    return RegisterBrokerBody(table, [str(server) for server in servers or ()])


def _sized(raw: bytes) -> bytes:
    return pack(">i", len(raw)) + raw


def _topic_text(topic: TopicConfig) -> str:
    parts = [
        topic.topic_name,
        str(topic.read_queue_nums),
        str(topic.write_queue_nums),
        str(topic.perm),
        topic.topic_filter_type,
    ]
    if topic.attributes is not None:
        parts.append(json.dumps(topic.attributes, separators=(",", ":")))
    return " ".join(parts)


def _topic(raw: bytes) -> TopicConfig:
    text = raw.decode("utf-8", "replace")
    name, *rest = text.split(" ", 5)
    try:
        read, write, perm = (parse_whole(number) for number in rest[:3])
        kind = rest[3]
    except (ValueError, IndexError):
        raise ProtocolError(f"not a valid topic of a registration: {text!r:.100}") from None
    attributes = None
    if len(rest) > 4 and rest[4].strip():
        attributes = TopicConfig.from_json(
            {"topicName": name, "attributes": loads(rest[4].encode(), "attributes")}
        ).attributes
    return TopicConfig(name, read, write, perm, kind, attributes=attributes)


def _inflated(raw: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(raw, INFLATED_MAX)
    except zlib.error as error:
        raise ProtocolError(f"a registration cannot be decompressed: {error}") from None
    if not stream.eof:
        more = f"more than {INFLATED_MAX} bytes long" if stream.unconsumed_tail else "cut off"
        raise ProtocolError(f"a compressed registration is {more}")
    return found


class _Pieces:
    """Reads numbers and length-prefixed pieces in order."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def number(self) -> int:
        (value,) = unpack_from(">i", self._take(4))
        if not 0 <= value <= len(self._raw):
            raise ProtocolError(f"a registration has the invalid length {value} at {self._at - 4}")
        return int(value)

    def sized(self) -> bytes:
        return self._take(self.number())

    def _take(self, size: int) -> bytes:
        piece = self._raw[self._at : self._at + size]
        if len(piece) < size:
            raise ProtocolError(f"a registration ends at {len(self._raw)}, within a piece")
        self._at += size
        return piece
