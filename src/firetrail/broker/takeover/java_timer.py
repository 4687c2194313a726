"""Records of pops that are waiting in the timer of a Java broker.

Java stores a checkpoint or an acknowledgement in the topic ``rmq_sys_wheel_timer`` first. When it
is due, the timer puts it into its real topic. Firetrail records pops there at once. It reads the
records that a Java broker has appended to the timer topic, and stores those that are not delivered
yet in its own way. Its own timer skips them.
"""

from pathlib import Path

from firetrail.broker.pop.pop_checkpoints import REVIVE_GROUP, PopCheckpoints
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.topic_table import TopicTable
from firetrail.broker.stored_messages import internal_records
from firetrail.errors import FormatError
from firetrail.format.files.timer import CHECK, TIMER_QUEUE, TIMER_TOPIC, decode_check
from firetrail.format.names import CONFIG
from firetrail.format.properties import REAL_QID, REAL_TOPIC, TIMER_OUT_MS
from firetrail.format.values.integers import INT32_MAX, number_in
from firetrail.store.broker_store import BrokerStore
from firetrail.system import Files

SLOT_MS = 1000
"""The duration of a slot in RocketMQ's timer, unless it is configured otherwise."""
DELAY_MAX_MS = 3 * 24 * 3600 * 1000
"""The longest delay that Java's timer accepts: older records are delivered."""


def take_over(
    store: BrokerStore,
    topics: TopicTable,
    offsets: OffsetTable,
    checkpoints: PopCheckpoints,
    files: Files,
    folder: Path,
) -> None:
    """Add the records that Java's timer has not delivered to the checkpoints."""
    end = store.queues.max_offset(TIMER_TOPIC, TIMER_QUEUE)
    done = offsets.get(REVIVE_GROUP, TIMER_TOPIC, TIMER_QUEUE)
    if end <= (done or 0):
        return
    delivered = _delivered_ms(files, folder) - SLOT_MS
    first = (
        store.embedded.offset_at(TIMER_TOPIC, TIMER_QUEUE, delivered - DELAY_MAX_MS)
        if done is None
        else done
    )
    checkpoints.take_over(
        (record, number_in(record.properties.get(REAL_QID), 0, INT32_MAX) or 0)
        for record in internal_records(store, TIMER_TOPIC, TIMER_QUEUE, first)
        if record.properties.get(REAL_TOPIC) == topics.revive
        and (number_in(record.properties.get(TIMER_OUT_MS)) or 0) >= delivered
    )
    offsets.keep(REVIVE_GROUP, TIMER_TOPIC, TIMER_QUEUE, end)


def note_read(offsets: OffsetTable, offset: int) -> None:
    """Note that the records before ``offset`` are Firetrail's own, or were taken over."""
    if offset > (offsets.get(REVIVE_GROUP, TIMER_TOPIC, TIMER_QUEUE) or 0):
        offsets.keep(REVIVE_GROUP, TIMER_TOPIC, TIMER_QUEUE, offset)


def _delivered_ms(files: Files, folder: Path) -> int:
    try:
        return decode_check(files.read(folder / CONFIG / CHECK)).read_ms
    except (FileNotFoundError, FormatError):
        return 0
