"""The assignment of queues to the consumers of a group, for clients that leave it to the broker.

An administrator sets whether a group pulls or pops the messages of a topic. This mode is kept in
RocketMQ's ``messageRequestMode.json``.
"""

from collections.abc import Awaitable, Callable

from firetrail.broker.services.clients import Clients
from firetrail.broker.state.group_table import check_group
from firetrail.broker.state.saver import Saver
from firetrail.broker.state.topic_table import check_topic_name
from firetrail.client.cluster.topic_route import queues_of
from firetrail.client.consumers.push.rebalance import Strategy, averagely, by_circle
from firetrail.errors import RequestError
from firetrail.format.names import RETRY_PREFIX
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import (
    AssignmentBody,
    MessageModel,
    MessageQueue,
    MessageQueueAssignment,
    QueryAssignmentBody,
    RequestMode,
    TopicRouteData,
)
from firetrail.remoting.messages.pop.pop_bodies import RequestModeBody, RequestModes
from firetrail.remoting.messages.pop.pop_headers import ANY_QUEUE
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.config_file import ConfigFile

STRATEGIES: dict[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}
"""The allocation strategies by the names that clients use."""

MODES_MAX = 10_000
"""Maximum number of pairs of a topic and a group with a request mode."""


class AssignmentProcessor:
    """Handles QUERY_ASSIGNMENT, and the requests that set and return request modes."""

    def __init__(
        self,
        file: ConfigFile,
        clients: Clients,
        route: Callable[[str], Awaitable[TopicRouteData | None]],
    ) -> None:
        """``route`` returns the queues of a topic on all brokers."""
        self._clients = clients
        self._route = route
        self._modes = file.load(RequestModes).message_request_mode_map
        self._saver = Saver(file, lambda: RequestModes(self._modes).to_json())
        self.handlers: dict[int, Handler] = {
            RequestCode.QUERY_ASSIGNMENT: self._query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._all_modes,
        }

    def adopt(self, modes: RequestModes) -> bool:
        """Replace the modes by those of a master; return whether anything has changed."""
        if modes.message_request_mode_map == self._modes:
            return False
        self._modes = modes.message_request_mode_map
        self._saver.changed()
        return True

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the modes of a topic, of a group, or of a group in a topic."""
        for name, modes in list(self._modes.items()):
            gone = [owner for owner in modes if topic in (None, name) and group in (None, owner)]
            for owner in gone:
                del modes[owner]
                self._saver.changed()
            if not modes:
                del self._modes[name]

    async def saved(self) -> None:
        """Return when all changes so far are in the file."""
        await self._saver.saved()

    async def stop(self) -> None:
        """Save unsaved changes."""
        await self._saver.stop()

    async def _set_mode(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        body = RequestModeBody.decode(request.content)
        if body.topic.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        check_topic_name(body.topic)
        check_group(body.consumer_group)
        known = body.consumer_group in self._modes.get(body.topic, {})
        if not known and sum(map(len, self._modes.values())) >= MODES_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"request modes are set for {MODES_MAX} topics and groups, which is the limit; "
                f"the mode of {body.consumer_group} in {body.topic} is not set",
            )
        self._modes.setdefault(body.topic, {})[body.consumer_group] = body
        self._saver.changed()
        await self._saver.saved()
        return request.answer()

    def _all_modes(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=RequestModes(self._modes).encode())

    async def _query(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        body = QueryAssignmentBody.decode(request.content)
        set_here = self._modes.get(body.topic, {}).get(body.consumer_group)
        mode = set_here or RequestModeBody(body.topic, body.consumer_group)
        route = await self._route(body.topic)
        queues = queues_of(body.topic, route, Permission.READ) if route is not None else []
        mine = self._share(body, mode, queues)
        assigned = (
            [MessageQueueAssignment(queue, mode.mode) for queue in mine]
            if mine is not None
            else None
        )
        return request.answer(body=AssignmentBody(assigned).encode(standard=True))

    def _share(
        self, body: QueryAssignmentBody, mode: RequestModeBody, queues: list[MessageQueue]
    ) -> list[MessageQueue] | None:
        """Return the queues of a client; None if they are unknown and the client keeps its
        queues."""
        if not queues:
            return None
        if body.message_model is MessageModel.BROADCASTING:
            return queues
        group = self._clients.consumers.get(body.consumer_group)
        strategy = STRATEGIES.get(body.strategy_name or "")
        if group is None or strategy is None:
            return None
        members, me = sorted(group.client_ids), body.client_id
        if me not in members:
            return []
        if mode.mode is not RequestMode.POP:
            return strategy(me, members, queues)
        if mode.pop_share_queue_num <= 0:
            names = dict.fromkeys(queue.broker_name for queue in queues)
            return [MessageQueue(body.topic, name, ANY_QUEUE) for name in names]
        index = members.index(me)
        if len(members) > len(queues):
            return [queues[index % len(queues)]]
        shared = [(index + n) % len(members) for n in range(mode.pop_share_queue_num + 1)]
        found = (queue for n in shared for queue in strategy(members[n], members, queues))
        return list(dict.fromkeys(found))
