"""A message to be stored, and the draft of its record.

Both are created once per put, so they are kernels. ``draft.pxd`` has the C types of the attributes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import SupportsIndex

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.errors import IllegalMessageError, PropertiesTooLongError, WrongTypeError
from firetrail.format import layout
from firetrail.format.kernels.encode import with_crc_room
from firetrail.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    KEY_SEPARATOR,
    KEYS,
    TAGS,
    encode_properties,
    without_crc,
)
from firetrail.format.values.arguments import mapping
from firetrail.format.values.hosts import Host, encode_host
from firetrail.format.values.integers import INT32_MAX, INT32_MIN, whole
from firetrail.kernels import SourceSignature

if not cython.compiled:  # first, because it tells type checkers what RecordFields is
    from firetrail.format.kernels.encode import RecordFields, record_size
else:
    from cython.cimports.firetrail.format.kernels.encode import RecordFields, record_size  # type: ignore[no-redef]

COMPILED = cython.compiled

_HOST_FLAGS = cython.declare(cython.longlong, layout.BORN_HOST_V6 | layout.STORE_HOST_V6)
_BORN_V6 = cython.declare(cython.longlong, layout.BORN_HOST_V6)
_HOST_V6_SIZE = cython.declare(cython.Py_ssize_t, layout.HOST_V6_SIZE)
_PROPERTIES_MAX = cython.declare(cython.Py_ssize_t, layout.MAX_PROPERTIES)
_INT32_MAX = cython.declare(cython.longlong, INT32_MAX)
_INT32_MIN = cython.declare(cython.longlong, INT32_MIN)
_DELAY_NAME = DELAY.encode()
_LIGHT_NAME = INNER_MULTI_DISPATCH.encode()
_CRC_MARK = layout.PROPERTY_CRC_MARK
_FIELDS = (
    "topic",
    "body",
    "tags",
    "keys",
    "properties",
    "queue_id",
    "delay_level",
    "flag",
    "sys_flag",
    "born_time",
    "born_host",
    "reconsume_times",
    "prepared_offset",
    "raw_properties",
    "wait_for_flush",
)


# Otherwise compiled code would check some arguments by itself, with TypeError.
@cython.annotation_typing(False)
class Message:
    """A message to send or to store.

    Args:
        topic: The topic. A producer sends to any topic that its brokers have, or create.
        body: The content. It may be empty.
        tags: The tag, by which consumers filter; None for a message without one.
        keys: The keys by which the message can be queried. Each is indexed by itself, and must not
            be empty or contain a space.
        properties: Further properties by name, which consumers receive and SQL filters use.
            Names that RocketMQ reserves for the other arguments are refused if both are given.
        queue_id: The queue in which a store puts the message (default: 0). Producers choose the
            queue themselves.
        delay_level: The delay before consumers receive the message, as a level of the broker's
            ``messageDelayLevel``; 0, the default, means no delay.
        flag: A number for the application, which RocketMQ stores but does not interpret
            (default: 0).
        sys_flag: RocketMQ's own flags, such as ``TRANSACTION_PREPARED`` (default: 0).
        born_time: When the message was created, in ms since 1970; None for the time of the put.
        born_host: The host that created the message; None for the host of the store.
        reconsume_times: The number of times that the message was retried (default: 0).
        prepared_offset: For the commit or rollback of a transaction, the physical offset of the
            half message (default: 0).
        raw_properties: Properties that a client has encoded already. They replace ``tags``,
            ``keys``, ``delay_level`` and ``properties``.
        wait_for_flush: Whether a put waits for the sync if the store is configured to sync every
            message (default: True).

    Raises:
        WrongTypeError: An argument has the wrong type. Values, such as the characters of a topic or
            the contents of ``keys`` and ``properties``, are checked when the message is sent or
            stored, with IllegalMessageError.
        ConfigError: A number does not fit into 64 bits.
    """

    __signature__ = SourceSignature()

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue_id: SupportsIndex = 0,
        delay_level: SupportsIndex = 0,
        flag: SupportsIndex = 0,
        sys_flag: SupportsIndex = 0,
        born_time: SupportsIndex | None = None,
        born_host: Host | None = None,
        reconsume_times: SupportsIndex = 0,
        prepared_offset: SupportsIndex = 0,
        raw_properties: bytes | None = None,
        wait_for_flush: bool = True,
    ) -> None:
        self.topic = topic if type(topic) is str else _text("topic", topic)
        if type(body) is not bytes and not isinstance(body, (bytes, bytearray, memoryview)):
            raise WrongTypeError("body", body, "expected bytes")
        self.body = body
        self.tags = tags if tags is None or type(tags) is str else _text("tags", tags)
        if type(keys) is not list and type(keys) is not tuple:
            _check_keys(keys)
        self.keys = keys
        if properties is not None and type(properties) is not dict:
            mapping("properties", properties)
        self.properties = properties
        self.queue_id = _whole("queue_id", queue_id)
        self.delay_level = _whole("delay_level", delay_level)
        self.flag = _whole("flag", flag)
        self.sys_flag = _whole("sys_flag", sys_flag)
        self.born_time = None if born_time is None else whole("born_time", born_time)
        if born_host is not None and not isinstance(born_host, Host):
            raise WrongTypeError("born_host", born_host, "expected a Host")
        self.born_host = born_host
        self.reconsume_times = _whole("reconsume_times", reconsume_times)
        self.prepared_offset = _whole("prepared_offset", prepared_offset)
        if raw_properties is not None and type(raw_properties) is not bytes:
            raise WrongTypeError("raw_properties", raw_properties, "expected bytes")
        self.raw_properties = raw_properties
        if wait_for_flush is not True and wait_for_flush is not False:
            raise WrongTypeError("wait_for_flush", wait_for_flush, "expected True or False")
        self.wait_for_flush = wait_for_flush

    def __repr__(self) -> str:
        return f"Message({', '.join(f'{name}={getattr(self, name)!r}' for name in _FIELDS)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    __hash__ = None  # type: ignore[assignment]  # its fields can be changed

    def encode_properties(self) -> bytes:
        """Return the properties as they are stored, without those that the store adds.

        Raises IllegalMessageError if the format cannot represent them.
        """
        if self.raw_properties is not None:
            if type(self.raw_properties) is not bytes:
                raise IllegalMessageError("raw_properties", _not("bytes", self.raw_properties))
            return self.raw_properties
        text = ""
        items = cython.declare(cython.Py_ssize_t, 0)
        if self.tags is not None and not isinstance(self.tags, str):
            raise IllegalMessageError("tags", _not("a str", self.tags))
        if self.delay_level < 0:
            raise IllegalMessageError("delay_level", f"{self.delay_level} is negative")
        if self.keys:
            text = f"KEYS\x01{_join_keys(self.keys)}\x02"
            items = 1
        if self.tags:
            text = f"{text}TAGS\x01{self.tags}\x02"
            items += 1
        if self.delay_level:
            text = f"{text}DELAY\x01{self.delay_level}\x02"
            items += 1
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            encoded = b""
        if _separators(encoded) != 2 * items:
            # A value contains a separator, or is not valid Unicode: this raises the error that
            # names the property.
            values = {KEYS: KEY_SEPARATOR.join(self.keys), TAGS: self.tags}
            encode_properties({name: value for name, value in values.items() if value})
        if not self.properties:
            return encoded
        if type(self.properties) is not dict and not isinstance(self.properties, Mapping):
            raise IllegalMessageError("properties", _not("a dict", self.properties))
        self._refuse_twice(KEYS, self.keys)
        self._refuse_twice(TAGS, self.tags)
        self._refuse_twice(DELAY, self.delay_level)
        return encoded + encode_properties(self.properties)

    def _refuse_twice(self, name: str, value: object) -> None:
        """Raise an error for a property that its own field also gives: it would be stored twice."""
        if value and self.properties and name in self.properties:
            raise IllegalMessageError(name, "given both as a property and by its own field")


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=True)
def _whole(field: str, value: object) -> cython.longlong:
    """Return the number in an argument; C's own conversion would truncate a float."""
    if cython.compiled and type(value) is int:
        try:
            return value
        except OverflowError:
            pass  # the error of whole() names the field
    return whole(field, value)


@cython.cfunc
def _text(field: str, value: object) -> str:
    """Return a member of a subclass of str, such as StrEnum, as a plain str."""
    if not isinstance(value, str):
        raise WrongTypeError(field, value, "expected a str")
    return str.__str__(value)


@cython.cfunc
def _check_keys(keys: object) -> cython.bint:
    if isinstance(keys, str):
        raise WrongTypeError("keys", keys, f"expected a list, such as [{keys!r}]")
    if not isinstance(keys, Collection) or isinstance(keys, (bytes, bytearray, memoryview)):
        raise WrongTypeError("keys", keys, "expected a list of str")
    return True


@cython.cfunc
def _not(wanted: str, value: object) -> str:
    return f"{wanted} is needed, not {type(value).__name__}"


@cython.cfunc
def _separators(encoded: bytes) -> cython.Py_ssize_t:
    count: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    if not cython.compiled:
        return encoded.count(1) + encoded.count(2)
    for i in range(len(encoded)):
        count += encoded[i] == 1
        count += encoded[i] == 2
    return count


@cython.cfunc
def _join_keys(keys: Sequence[str]) -> str:
    if isinstance(keys, str):
        raise IllegalMessageError("keys", f'a list is needed, such as ["{keys}"]')
    if type(keys) is not list and not isinstance(keys, Collection):
        raise IllegalMessageError("keys", _not("a list", keys))
    try:
        joined: str = KEY_SEPARATOR.join(keys)
    except TypeError:
        raise IllegalMessageError("keys", f"every key must be a str: {list(keys)!r}") from None
    if "" in keys:
        raise IllegalMessageError("keys", f"a key is empty: {list(keys)!r}")
    if joined.count(KEY_SEPARATOR) != len(keys) - 1:
        raise IllegalMessageError("keys", f"a key must not contain a space: {list(keys)!r}")
    return joined


class DraftRules:
    """The properties of the store on which drafts depend."""

    def __init__(
        self, store_host: bytes, property_crc: bool, body_max: int, record_max: int
    ) -> None:
        self.store_host = store_host
        self.store_flags = layout.STORE_HOST_V6 if len(store_host) == layout.HOST_V6_SIZE else 0
        self.property_crc = property_crc
        self.body_max = body_max
        self.record_max = record_max
        self.light_queues = False


class Draft(RecordFields):
    """A validated message that lacks only store time, queue offset and position."""

    def __init__(self, message: Message, topic: bytes, rules: DraftRules) -> None:
        """Validate ``message`` for ``topic``. Raises IllegalMessageError."""
        properties: bytes = message.encode_properties()
        if _CRC_MARK in properties:  # the message is a copy of a record with a property CRC
            properties = without_crc(properties)
        body = message.body
        if type(body) is not bytes:
            body = _plain_body(body)
        if message.queue_id < 0 or message.queue_id > _INT32_MAX:
            raise IllegalMessageError("queue_id", f"{message.queue_id} is not in 0..{INT32_MAX}")
        check_int32("flag", message.flag)
        check_int32("sys_flag", message.sys_flag)
        check_int32("reconsume_times", message.reconsume_times)
        self.may_delay = message.delay_level != 0 or (
            (message.raw_properties is not None or message.properties is not None)
            and _DELAY_NAME in properties
        )
        self.names_light_queues = rules.light_queues and _LIGHT_NAME in properties
        if message.born_host is None:
            self.born_host = rules.store_host
        else:
            if not isinstance(message.born_host, Host):
                raise IllegalMessageError("born_host", _not("a Host", message.born_host))
            self.born_host = encode_host(message.born_host)
        self.sys_flag = message.sys_flag & ~_HOST_FLAGS | rules.store_flags
        if len(self.born_host) == _HOST_V6_SIZE:
            self.sys_flag |= _BORN_V6
        self.topic = topic
        self.store_host = rules.store_host
        self.queue_id = message.queue_id
        self.flag = message.flag
        self.born_time = message.born_time or 0
        self.reconsume_times = message.reconsume_times
        self.prepared_offset = message.prepared_offset
        self.body = body
        if rules.property_crc:
            properties = with_crc_room(properties)
        self.properties = properties
        if len(properties) > _PROPERTIES_MAX:
            raise PropertiesTooLongError(
                "properties", f"{len(properties)} bytes, at most {layout.MAX_PROPERTIES}"
            )
        if len(self.body) > rules.body_max:
            raise IllegalMessageError("body", f"{len(self.body)} bytes, at most {rules.body_max}")
        self.size = record_size(
            len(self.born_host), len(rules.store_host), len(self.body), len(topic), len(properties)
        )
        if self.size > rules.record_max:
            raise IllegalMessageError(
                "message", f"a record of {self.size} bytes, at most {rules.record_max}"
            )


@cython.ccall
def check_int32(field: str, value: cython.longlong) -> cython.bint:
    """Raise IllegalMessageError unless the value of a field fits into 32 bits."""
    if value < _INT32_MIN or value > _INT32_MAX:
        raise IllegalMessageError(field, f"{value} is not a signed number of 32 bits")
    return True


@cython.cfunc
def _plain_body(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise IllegalMessageError("body", f"bytes are needed, not {type(body).__name__}")
