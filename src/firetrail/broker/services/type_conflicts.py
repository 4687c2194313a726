"""Reports of messages that are of another type than their topic.

RocketMQ accepts them over the remoting protocol, and so does Firetrail. A gRPC client could not
send them, so they usually show that a topic was created for something else.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

from firetrail.errors import FormatError
from firetrail.format.batch import decode_batch
from firetrail.format.message_types import TYPE_ATTRIBUTE, MessageType, type_conflict, type_of_topic
from firetrail.format.properties import decode_properties
from firetrail.pace.limited_log import LimitedLog
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.messages.headers import SendHeader

REPORT_INTERVAL_S = 60.0
"""Pause between two log lines about one topic."""

_log = logging.getLogger(__name__)


class TypeConflicts:
    """Logs some of the reported messages, by topic.

    Args:
        monotonic: Returns a time in seconds that never goes back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._log = LimitedLog(_log, monotonic, burst=1, per_s=1 / REPORT_INTERVAL_S)

    def check(
        self,
        topic: TopicConfig,
        header: SendHeader,
        properties: Mapping[str, str],
        content: bytes,
        peer: str,
    ) -> None:
        """Report a message, or the first one of a batch that does not fit its topic."""
        name, attributes = topic.topic_name, topic.attributes or {}
        if type_of_topic(attributes) is MessageType.MIXED or TYPE_ATTRIBUTE not in attributes:
            return
        for each in _messages(content, properties) if header.batch else (properties,):
            conflict = type_conflict(name, attributes, each)
            if conflict is not None:
                break
        else:
            return
        self._log.log(
            logging.WARNING,
            name,
            f"topic {name} has the type {conflict.wanted}, but {peer} (producer group "
            f"{header.producer_group:.120}) sent a message of the type {conflict.found}; it was "
            "accepted, but gRPC clients cannot send such a message; to allow all types: firetrail "
            f"topic create {name} --type MIXED --queues {topic.write_queue_nums}",
        )


def _messages(batch: bytes, shared: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield the properties of the messages of a batch, with those that all of them get."""
    try:
        items = decode_batch(batch)
    except FormatError:  # the store refuses the batch and gives the reason
        return
    for item in items:
        yield {**decode_properties(item.properties), **shared}
