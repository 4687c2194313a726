"""A stored message once more: the same content for another topic or queue."""

from __future__ import annotations

from firetrail.format.kernels.draft import Message
from firetrail.format.record import Record


def copied(
    record: Record,
    topic: str,
    queue_id: int,
    properties: bytes,
    *,
    sys_flag: int | None = None,
    older: int = 0,
    prepared_offset: int = 0,
    delay_level: int = 0,
    wait_for_flush: bool = True,
) -> Message:
    """The message as it is to be stored again, tried ``older`` times more than before."""
    return Message(
        topic,
        record.body,
        queue_id=queue_id,
        delay_level=delay_level,
        flag=record.flag,
        sys_flag=record.sys_flag if sys_flag is None else sys_flag,
        born_time=record.born_time,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times + older,
        prepared_offset=prepared_offset,
        raw_properties=properties,
        wait_for_flush=wait_for_flush,
    )
