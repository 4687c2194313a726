"""Warnings about groups that receive from a FIFO topic without order.

The messages of a FIFO topic are stored in order, but gRPC clients get them in order only if their
group was created for that.
"""

import logging

from firetrail.errors import FiretrailError
from firetrail.format.message_types import MessageType, type_of_topic
from firetrail.proxy.upstream.interface import Brokers, resolved

PAIRS_MAX = 1_000
"""Maximum number of pairs of group and topic that are checked; further ones are not reported."""

_log = logging.getLogger(__name__)


class UnorderedGroups:
    """Logs a warning, once for each group and topic.

    Args:
        brokers: The brokers that know the types of topics.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._checked: set[tuple[str, str]] = set()

    async def check(self, group: str, topic: str) -> None:
        """Report a group that does not consume in order if the topic is for FIFO messages."""
        pair = (group, topic)
        if pair in self._checked or len(self._checked) >= PAIRS_MAX:
            return
        self._checked.add(pair)
        try:
            config = await resolved(self._brokers.topic(topic))
        except (FiretrailError, OSError):  # the request of the client has succeeded
            return
        if config is not None and type_of_topic(config.attributes) is MessageType.FIFO:
            _log.warning(
                "group %s receives messages of the FIFO topic %s, but not in order; to get them in "
                "order: firetrail group create %s --orderly",
                group,
                topic,
                group,
            )
