"""Positions of a broker in a salvaged store, whose messages have other queue offsets than before.

Offsets of groups and delay levels are replaced by those that the same messages have now. Records of
pops contain offsets: those after the damage are skipped, and the messages that were popped since
are redelivered to their groups. End marks of transactions refer to half messages by offset: if half
messages were lost, the end marks after the damage are skipped, and producers are asked again.
"""

from __future__ import annotations

from firetrail.broker.state.excess_positions import set_back_files
from firetrail.broker.state.offset_files import GroupOffsets, change_offsets
from firetrail.errors import FormatError, ProtocolError
from firetrail.format.names import DELAY_OFFSETS, SCHEDULE_TOPIC, group_key, parse_group_key
from firetrail.format.record import decode_message
from firetrail.format.system_topics import HALF_TOPIC, OP_TOPIC, REVIVE_PREFIX
from firetrail.remoting.messages.bodies import DelayOffsets
from firetrail.remoting.messages.pop.pop_bodies import CHECKPOINT, CheckpointBody, OrderInfos
from firetrail.settings.config_file import ORDERS, change_file
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.good_records import GoodRecord
from firetrail.store.repair.salvage import Numbering, SalvageResult

_HALF_QUEUE = 0


class SalvagedPositions:
    """Tells a salvage which records to keep, and renumbers the files of the broker at the end."""

    def __init__(self) -> None:
        self._popped: dict[tuple[str, int], int] = {}
        """By ``topic@group`` and queue id: the offset at which the first skipped pop began."""
        self.done: list[str] = []
        """A line for each change."""

    def wanted(self, record: GoodRecord, numbering: Numbering) -> bool:
        """Whether a record keeps its meaning in the new store."""
        if record.topic.startswith(REVIVE_PREFIX):
            self._remember_pop(record)
            return False
        if record.topic == OP_TOPIC:
            return not numbering.is_changed(HALF_TOPIC, _HALF_QUEUE)
        return True

    def _remember_pop(self, record: GoodRecord) -> None:
        try:
            message = decode_message(record.content)
            if message.tags != CHECKPOINT:
                return
            body = CheckpointBody.decode(message.body)
        except (FormatError, ProtocolError):
            return  # a broker skips it as well
        key = (group_key(body.topic, body.group), body.queue_id)
        self._popped[key] = min(self._popped.get(key, body.start), body.start)

    def finish(self, view: StoreView, salvaged: SalvageResult) -> None:
        """Replace the offsets in the files of the broker."""
        numbering = salvaged.numbering

        def groups(offsets: GroupOffsets) -> list[str]:
            return self._groups(offsets, numbering)

        def delays(table: DelayOffsets) -> list[str]:
            return self._delays(table, numbering)

        def orders(table: OrderInfos) -> list[str]:
            return self._orders(table, numbering)

        place = (view.system, view.root)
        self.done += change_offsets(*place, groups)
        self.done += change_file(*place, DELAY_OFFSETS, DelayOffsets, delays)
        self.done += change_file(*place, ORDERS, OrderInfos, orders)
        self.done += set_back_files(*place, view.queue_end)

    def _groups(self, offsets: GroupOffsets, numbering: Numbering) -> list[str]:
        done = []
        for key, queues in offsets.items():
            topic, group = parse_group_key(key)
            if topic.startswith(REVIVE_PREFIX):
                continue  # its records end at the damage; offsets beyond it are set back
            for queue_id, old in queues.items():
                popped = min(old, self._popped.get((key, queue_id), old))
                queues[queue_id] = new = numbering.new_offset(topic, queue_id, popped)
                if new != old:
                    done.append(f"group {group}: offset {old} of {topic}/{queue_id} is now {new}")
        return done

    def _delays(self, table: DelayOffsets, numbering: Numbering) -> list[str]:
        done = []
        for level, old in table.offset_table.items():
            queue_id = level - 1
            new = numbering.new_offset(SCHEDULE_TOPIC, queue_id, old)
            table.offset_table[level] = new
            if new != old:
                place = f"{SCHEDULE_TOPIC}/{queue_id}"
                done.append(f"delay level {level}: offset {old} of {place} is now {new}")
        return done

    def _orders(self, table: OrderInfos, numbering: Numbering) -> list[str]:
        """Remove ordered pops of renumbered queues; their messages are redelivered."""
        done = []
        for key, queues in table.table.items():
            topic, group = parse_group_key(key)
            for queue_id in [q for q in queues if numbering.is_changed(topic, q)]:
                del queues[queue_id]
                done.append(f"ordered pop of group {group} in {topic}/{queue_id}: removed")
        return done
