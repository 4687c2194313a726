"""What the broker has noted in topics of its own, read back after a start."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from firetrail.errors import FormatError
from firetrail.format.record import Record, decode_message
from firetrail.store.broker_store import BrokerStore

_log = logging.getLogger(__name__)


def own_records(store: BrokerStore, topic: str, queue_id: int, offset: int) -> Iterator[Record]:
    """The records of a queue from ``offset`` on.

    One that is damaged is reported and left out: for the sake of a single note, the messages of
    everybody else are not kept back.
    """
    while True:
        result = store.get_hashed(topic, queue_id, offset)
        if result.next_offset <= offset:
            return
        for buffer in result.buffers:
            try:
                yield decode_message(buffer)
            except FormatError as error:
                _log.error(
                    "%s, queue %d: a record of the broker's own from offset %d on is damaged and "
                    "left out (%s); firetrail fsck shows where it stands",
                    topic,
                    queue_id,
                    offset,
                    error,
                )
        offset = result.next_offset
