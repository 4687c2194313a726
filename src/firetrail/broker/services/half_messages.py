"""Half messages: what a broker keeps of each in memory, and what it makes of their records."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass, field

from firetrail.broker.services.clients import Client
from firetrail.broker.stored import copy_record
from firetrail.format import layout
from firetrail.format.ids import encode_message_id
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import (
    CHECK_IMMUNITY_TIME,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    get_property,
    without_crc,
)
from firetrail.format.record import Record, encode_record
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import Command
from firetrail.remoting.headers import CheckTransactionHeader
from firetrail.store.results import PutResult

QUEUE = 0
"""Of the broker's own topics for half messages."""
Identity = tuple[str, str]
"""Producer group and unique key."""
_NUMBER = re.compile("[0-9]{1,9}")


@dataclass(slots=True)
class Half:
    """A half message that is open."""

    offset: int
    physical_offset: int
    store_time: int
    """When it was stored, or its producer was asked last."""
    group: str
    """Of its producers."""
    immunity_ms: int | None
    """How long its producer wants to be left alone; None if it has not said."""
    checks: int = 0
    """How often a producer was asked."""
    is_known: bool = True
    """Whether its producer knows it by its offset, or may do so."""
    earlier: list[int] = field(default_factory=list)
    """Offsets that its producer knows it by, of when it was stored before."""
    ending: asyncio.Task[None] | None = None
    """What stores its end at the moment."""


def half_at(place: PutResult | Record, properties: bytes, checks: int = 0) -> Half:
    """A half message that was just stored, or found in the log."""
    seconds = _number(properties, CHECK_IMMUNITY_TIME)
    return Half(
        place.queue_offset,
        place.physical_offset,
        place.store_time,
        sys.intern(get_property(properties, PGROUP) or ""),  # one string for all of a group
        None if seconds is None else seconds * 1000,
        checks,
    )


def checks_of(properties: bytes) -> int | None:
    """How often the producer was asked before it was stored; None if it is the first copy."""
    return _number(properties, TRANSACTION_CHECK_TIMES)


def _number(properties: bytes, name: str) -> int | None:
    """The number in a property, None if there is none: producers may write anything there."""
    text = get_property(properties, name) or ""
    return int(text) if _NUMBER.fullmatch(text) else None


def identity_of(record: Record) -> Identity | None:
    """What a half message has in common with what is stored of it again."""
    properties = record.properties
    unique = properties.get(UNIQ_KEY)
    return (properties.get(PGROUP, ""), unique) if unique else None


def copy_of(record: Record, topic: str, properties: bytes) -> Message:
    """A half message as it is to be stored in one of the broker's own topics."""
    return copy_record(record, topic, QUEUE, properties, wait_for_flush=False)


def committed_from(record: Record) -> Message:
    """The message that consumers get."""
    properties = record.properties
    return copy_record(
        record,
        properties[REAL_TOPIC],
        int(properties[REAL_QID]),
        record.raw_properties,
        sys_flag=record.sys_flag | layout.TRANSACTION_COMMIT,
        prepared_offset=record.physical_offset,
    )


def ask(producer: Client, record: Record) -> None:
    """CHECK_TRANSACTION_STATE, with the message as its producer knows it."""
    properties = record.properties
    unique = properties.get(UNIQ_KEY)
    header = CheckTransactionHeader(
        record.queue_offset,
        record.physical_offset,
        unique,
        unique,
        encode_message_id(record.store_host, record.physical_offset),
    )
    shown = record._replace(
        topic=properties[REAL_TOPIC],
        queue_id=int(properties[REAL_QID]),
        raw_properties=without_crc(record.raw_properties),
    )
    producer.connection.tell(
        Command(RequestCode.CHECK_TRANSACTION_STATE, header.encode(), encode_record(shown))
    )
