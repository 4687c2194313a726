"""Notes of pops that a Java broker has given to its timer, which has not delivered them yet.

Java stores a check-point or acknowledgement in the topic ``rmq_sys_wheel_timer`` first; its timer
puts it into the topic it is for when it is due. Firetrail has no such timer. A store that was
Java's is read once for what is still to be delivered, which then is noted as Firetrail does it.
"""

from __future__ import annotations

from pathlib import Path

from firetrail.broker.pop.checkpoints import GROUP, PopCheckpoints
from firetrail.broker.state.offsets import OffsetTable
from firetrail.broker.state.topics import TIMER_TOPIC as TOPIC
from firetrail.broker.state.topics import TopicTable
from firetrail.broker.stored import internal_records, number_property
from firetrail.format.names import CONFIG
from firetrail.format.properties import REAL_QID, REAL_TOPIC, TIMER_OUT_MS
from firetrail.format.timer import CHECK, SLOT_MS, decode_check
from firetrail.store.broker_store import BrokerStore
from firetrail.system import Files

QUEUE = 0
DELAY_MAX_MS = 3 * 24 * 3600 * 1000
"""The longest delay that Java's timer takes: what is older is delivered."""


def take_over(
    store: BrokerStore,
    topics: TopicTable,
    offsets: OffsetTable,
    checkpoints: PopCheckpoints,
    files: Files,
    folder: Path,
) -> None:
    """Let the check-points know what Java's timer would have told them."""
    end = store.max_offset(TOPIC, QUEUE)
    done = offsets.get(GROUP, TOPIC, QUEUE)
    if end <= (done or 0):
        return
    delivered = _delivered_ms(files, folder) - SLOT_MS
    first = store.offset_at(TOPIC, QUEUE, delivered - DELAY_MAX_MS) if done is None else done
    checkpoints.take_over(
        (record, number_property(record, REAL_QID) or 0)
        for record in internal_records(store, TOPIC, QUEUE, first)
        if record.properties.get(REAL_TOPIC) == topics.revive
        and (number_property(record, TIMER_OUT_MS) or 0) >= delivered
    )
    offsets.commit(GROUP, TOPIC, QUEUE, end)


def _delivered_ms(files: Files, folder: Path) -> int:
    try:
        return decode_check(files.read(folder / CONFIG / CHECK)).delivered_ms
    except FileNotFoundError:
        return 0
