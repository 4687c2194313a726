"""The queues of the topics that a consumer subscribes to; some topics may not exist yet."""

import logging

from firetrail.client.cluster.session import Session
from firetrail.client.cluster.topic_route import queues_of
from firetrail.errors import NoRouteYetError, RequestError
from firetrail.format.names import RETRY_PREFIX
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.wire.codes import Permission, ResponseCode

TOPIC_POLL_S = 1.0
"""Interval at which a consumer looks for a topic that does not exist yet."""

_log = logging.getLogger(__name__)


class TopicQueues:
    """Finds queues, and remembers which topics did not exist."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.missing: set[str] = set()
        """Topics that did not exist the last time they were looked up."""
        self.late: set[str] = set()
        """Topics created after the consumer started; it consumes them from their first message."""

    async def find(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic; none if the topic does not exist yet."""
        try:
            route = await self._session.route(topic)
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            self._miss(topic, error)
            return []
        self.missing.discard(topic)
        return queues_of(topic, route, Permission.READ)

    def _miss(self, topic: str, error: RequestError) -> None:
        if not isinstance(error, NoRouteYetError):  # otherwise the topic may exist already
            self.late.add(topic)
        if topic not in self.missing and not topic.startswith(RETRY_PREFIX):
            _log.warning(
                "%s: topic %s does not exist yet; the consumer looks for it every %g s: %s",
                self._group,
                topic,
                TOPIC_POLL_S,
                error.remark,
            )
        self.missing.add(topic)
