"""The queues of the topics that a consumer wants, of which some may not exist yet."""

from __future__ import annotations

import logging

from firetrail.client.session import Session, queues_of
from firetrail.errors import NoRouteYetError, RequestError
from firetrail.format.names import RETRY_PREFIX
from firetrail.remoting.bodies import MessageQueue
from firetrail.remoting.codes import Permission, ResponseCode

TOPIC_S = 1.0
"""Between two looks for a topic that does not exist yet."""

_log = logging.getLogger(__name__)


class TopicQueues:
    """Looks for queues; remembers which topics were not there."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.missing: set[str] = set()
        """Topics that did not exist at the last look."""
        self.late: set[str] = set()
        """Topics that are younger than the consumer, which gets all of their messages."""

    async def find(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read; none if there is no such topic yet."""
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
        if not isinstance(error, NoRouteYetError):  # then it may be an old one
            self.late.add(topic)
        if topic not in self.missing and not topic.startswith(RETRY_PREFIX):
            _log.warning(
                "%s: there is no topic %s yet; it is looked for every %g s: %s",
                self._group,
                topic,
                TOPIC_S,
                error.remark,
            )
        self.missing.add(topic)
