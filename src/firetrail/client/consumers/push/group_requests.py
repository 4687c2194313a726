"""Requests that a member of a consumer group sends to brokers."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from firetrail.client.cluster.independent_steps import StepFailures
from firetrail.client.cluster.session import Session
from firetrail.client.messages.received_message import Received
from firetrail.client.messages.send_requests import SEND_S
from firetrail.errors import FiretrailError
from firetrail.remoting.messages.bodies import ConsumerIdList
from firetrail.remoting.messages.headers import GroupHeader, SendBackHeader
from firetrail.remoting.wire.codes import RequestCode

SEND_BACK_RETRY_S = 5.0
"""Pause before a message is sent back again to a broker that did not accept it."""
_DEAD_LETTER = -1
"""The delay level with which a broker moves a message to the dead-letter topic."""

_log = logging.getLogger(__name__)


class GroupRequests:
    """The requests of one member."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def members(self, brokers: Iterable[str]) -> list[str]:
        """Return the sorted client ids of the group, from the first of the brokers that answers."""
        failures = StepFailures()
        for broker in brokers:
            with failures.noted():
                answer = await self._session.ask(
                    self._session.address_of(broker),
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                    GroupHeader(self._group),
                )
                return sorted(ConsumerIdList.decode(answer.content).consumer_id_list)
        failures.raise_first()
        return []

    async def send_back(
        self,
        message: Received,
        *,
        max_retries: int | None,
        dead_letter: bool,
        is_dropped: Callable[[], bool],
    ) -> bool:
        """Send a message that was not consumed back to its broker; retry until the broker has it.

        The broker redelivers the message later, or moves it to the dead-letter topic after
        ``max_retries``; with ``dead_letter`` it does the latter at once. Return False if
        ``is_dropped`` says that the queue was given up before the broker accepted the message.
        """
        header = SendBackHeader(
            offset=message.record.physical_offset,
            group=self._group,
            delay_level=_DEAD_LETTER if dead_letter else 0,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=max_retries,
        )
        while not is_dropped():
            try:
                await self._session.route(message.queue.topic)  # another broker may be the master
                address = self._session.address_of(message.queue.broker_name)
                code = RequestCode.CONSUMER_SEND_MSG_BACK
                await self._session.ask(address, code, header, timeout_s=SEND_S)
                return True
            except (OSError, FiretrailError) as error:
                _log.warning(
                    "%s: message %s could not be sent back to %s; the client retries in %g s: %s",
                    self._group,
                    message.message_id,
                    message.queue.broker_name,
                    SEND_BACK_RETRY_S,
                    error,
                )
                await asyncio.sleep(SEND_BACK_RETRY_S)
        return False
