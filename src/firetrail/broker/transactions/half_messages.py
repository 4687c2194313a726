"""Half messages: their state in memory, and the messages and checks derived from their records."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from firetrail.auth.caller import Caller
from firetrail.broker.services.clients import Client
from firetrail.broker.stored_messages import copy_record, destination_of
from firetrail.errors import RequestError
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import (
    CHECK_IMMUNITY_TIME,
    PGROUP,
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    without_crc,
)
from firetrail.format.record import Record, encode_record
from firetrail.format.values.hosts import Host
from firetrail.format.values.ids import encode_message_id
from firetrail.format.values.integers import INT32_MAX, number_in
from firetrail.remoting.messages.headers import CheckTransactionHeader
from firetrail.remoting.servers.fair_shares import ShareHolder, holder_of, unknown_holder
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.results import PutResult

QUEUE = 0
"""The only queue of the broker's internal topics for half messages."""
Identity = tuple[str, str, str]
"""Real topic, producer group and unique key. Producers choose the last two, so without the topic a
message of one producer could count as a copy of another's."""


@dataclass(slots=True)
class HalfMessage:
    """A half message whose transaction has not ended."""

    offset: int
    physical_offset: int
    store_time: int
    """The time at which it was stored, or at which its producer was last asked."""
    group: str
    """The producer group."""
    topic: str
    """The topic that it will be in when it is committed; empty if it names no destination."""
    immunity_ms: int | None
    """Time before the first check that the producer asked for; None if it did not specify one."""
    holder: ShareHolder
    """The client that began the transaction, as far as it is known."""
    checks: int = 0
    """The number of checks so far."""
    is_known: bool = True
    """Whether its producer may refer to it by its current offset."""
    earlier: list[int] = field(default_factory=list)
    """Offsets of earlier copies of it that its producer may refer to."""
    ending: asyncio.Task[PutResult] | None = None
    """The task that is storing its end, None if there is none."""


def half_at(
    place: PutResult | Record,
    properties: Mapping[str, str],
    checks: int = 0,
    holder: ShareHolder | None = None,
) -> HalfMessage:
    """Return the state of a half message that was just stored or found in the log.

    Args:
        place: Its place.
        properties: Its properties.
        checks: The number of checks so far.
        holder: The client that began the transaction. Default: None, for unknown.
    """
    seconds = number_in(properties.get(CHECK_IMMUNITY_TIME), 0, INT32_MAX)
    topic, _ = destination_of(properties) or ("", QUEUE)
    group = sys.intern(properties.get(PGROUP, ""))  # one string per group
    return HalfMessage(
        offset=place.queue_offset,
        physical_offset=place.physical_offset,
        store_time=place.store_time,
        group=group,
        topic=sys.intern(topic),
        immunity_ms=None if seconds is None else seconds * 1000,
        holder=holder or unknown_holder(group),
        checks=checks,
    )


def producer_of(
    properties: Mapping[str, str], host: Host | None, caller: Caller | None
) -> ShareHolder:
    """Return the name under which an open transaction is counted: that of the sender.

    Args:
        properties: The properties of the message.
        host: The address of the sender; None if a record cannot hold it.
        caller: The user of the sender; None if there is no access control.
    """
    group = sys.intern(properties.get(PGROUP, ""))
    return holder_of("" if host is None else host.ip, caller, group)


def checks_of(properties: Mapping[str, str]) -> int | None:
    """Return the number of checks before this copy; None for the first copy."""
    return number_in(properties.get(TRANSACTION_CHECK_TIMES), 0, INT32_MAX)


def identity_of(properties: Mapping[str, str]) -> Identity | None:
    """Return the identity that all copies of a half message share; None if it has no unique key."""
    unique = properties.get(UNIQ_KEY)
    topic, group = properties.get(REAL_TOPIC, ""), properties.get(PGROUP, "")
    return (topic, group, unique) if unique else None


def copy_of(record: Record, topic: str, properties: bytes) -> Message:
    """Return a copy of a half message for one of the broker's internal topics."""
    return copy_record(record, topic, QUEUE, properties, wait_for_flush=False)


def committed_from(record: Record) -> Message:
    """Return the message that consumers get once the half message is committed.

    Raises:
        RequestError: The half message names no destination.
    """
    topic, queue_id = _destination(record)
    return copy_record(record, topic, queue_id, record.raw_properties, committed=True)


def _destination(record: Record) -> tuple[str, int]:
    found = destination_of(record.properties)
    if found is None:
        what = f"the half message at {record.physical_offset} names no topic and queue"
        raise RequestError(ResponseCode.SYSTEM_ERROR, what)
    return found


def ask(producer: Client, record: Record) -> None:
    """Send CHECK_TRANSACTION_STATE with the message in the form in which its producer sent it."""
    unique = record.properties.get(UNIQ_KEY)
    header = CheckTransactionHeader(
        record.queue_offset,
        record.physical_offset,
        unique,
        unique,
        encode_message_id(record.store_host, record.physical_offset),
    )
    topic, queue_id = _destination(record)
    raw = without_crc(record.raw_properties)
    shown = record._replace(topic=topic, queue_id=queue_id, raw_properties=raw)
    producer.connection.tell(
        RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, header.encode(), encode_record(shown))
    )
