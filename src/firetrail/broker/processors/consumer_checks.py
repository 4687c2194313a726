"""The checks of everything that hands out messages to consumers: pulls, pops, peeks, notifications.

A waiting request is checked again when it is woken, because an operator may have changed a
permission or a setting meanwhile.
"""

from collections.abc import Callable

from firetrail.broker.broker_state import BrokerState
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.messages.pop.pop_headers import ANY_QUEUE
from firetrail.remoting.messages.requests import BUSY
from firetrail.remoting.wire.codes import Permission, ResponseCode
from firetrail.store.settings.store_config import BrokerRole

SLAVE_READ = "slaveReadEnable=true"
"""The setting that makes a slave serve consumers."""
DIVERGED = "this replica has diverged from its master, and serves no messages until it is rewound"
_READ = int(Permission.READ)  # the operators of an enum would cost measurable time in every pull


class ConsumerChecks:
    """Decides whether a group may read a queue of a topic here and now.

    Args:
        state: The state of the broker.
        divergence: Returns why the log of a slave is not its master's; empty if it is.
    """

    def __init__(self, state: BrokerState, divergence: Callable[[], str]) -> None:
        self._is_slave = state.store.config.role is BrokerRole.SLAVE
        self._divergence = divergence
        self._live = state.live
        self._topics = state.topics
        self._groups = state.groups

    def require_readable(
        self, group: str, topic: str, queue_id: int, lowest: int = 0
    ) -> SubscriptionGroupConfig:
        """Return the settings of the group; raise RequestError if it may not read the queue.

        Args:
            group: The name of the consumer group.
            topic: The name of the topic.
            queue_id: The number of the queue.
            lowest: The lowest number that the request may have: ``ANY_QUEUE`` if it may ask for all
                queues at once (default: 0).
        """
        if self._is_slave:
            self._check_slave()
        if not self._live.current.permission & _READ:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker is not readable")
        found = self._groups.require(group)
        if not found.consume_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}"
            )
        if self._groups.forbidden and self._groups.is_forbidden(group, topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] is forbidden for topic[{topic}]",
            )
        config = self._topics.require(topic)
        if not config.perm & _READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden"
            )
        if not lowest <= queue_id < config.read_queue_nums:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )
        return found

    def require_poppable(self, group: str, topic: str, queue_id: int) -> None:
        """Raise RequestError if the group may not read the queue; a negative number is all."""
        self.require_readable(group, topic, max(queue_id, ANY_QUEUE), ANY_QUEUE)

    def require_broadcast(self, group: str) -> None:
        """Raise RequestError if the group may not consume by broadcast."""
        found = self._groups.get(group)
        if found is not None and not found.consume_broadcast_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"group {group} may not consume by broadcast"
            )

    def _check_slave(self) -> None:
        if not self._live.current.slave_read:
            raise RequestError(BUSY.code, f"{BUSY.remark}; to read here, set {SLAVE_READ}")
        if divergence := self._divergence():
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{DIVERGED}: {divergence}")
