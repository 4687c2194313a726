"""Administration of topics and groups by ``mqadmin`` and the dashboard."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.services.registration import wait_for_registration
from firetrail.broker.services.schedule import ScheduleService
from firetrail.broker.state import attributes
from firetrail.broker.state.deletions import Deletions
from firetrail.broker.state.group_table import check_group
from firetrail.errors import RequestError
from firetrail.format.light import is_light
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler
from firetrail.remoting.messages.admin.admin_bodies import GroupForbidden
from firetrail.remoting.messages.admin.admin_headers import (
    DeleteGroupHeader,
    ForbiddenHeader,
    GroupNameHeader,
)
from firetrail.remoting.messages.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
    TopicList,
)
from firetrail.remoting.messages.headers import CreateTopicHeader, TopicHeader
from firetrail.remoting.messages.typed_body import loads
from firetrail.remoting.servers.large_answers import answer_with
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

REMOVALS_MAX = 100
"""Maximum number of attempts to remove the queues of a deleted topic."""
REMOVAL_PAUSE_S = 0.02
"""Pause between two such attempts."""


class TopicGroupProcessor:
    """Handles the requests that create, change, delete and list topics and groups."""

    def __init__(
        self,
        state: BrokerState,
        schedule: ScheduleService,
        deletions: Deletions,
        pending_registration: Callable[[], asyncio.Future[None] | None],
    ) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._schedule = schedule
        self._deletions = deletions
        self._pending_registration = pending_registration
        self._address = state.address
        self._now_ms = state.system.clock.now_ms
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self._create_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.CLEAN_UNUSED_TOPIC: self._clean_unused,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self._clean_expired,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all_topics,
            RequestCode.GET_TOPIC_CONFIG: self._topic,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._create_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._create_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self._forbid,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._all_delays,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._delete_expired,
        }

    # -- topics -------------------------------------------------------------------------------

    async def _create_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = CreateTopicHeader.decode(request.fields)
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=attributes.parse(header.attributes),
        )
        await self._put_topics([topic])
        return request.answer()

    async def _create_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        await self._put_topics(TopicConfigList.decode(request.content).topic_config_list)
        return request.answer()

    async def _put_topics(self, topics: Iterable[TopicConfig]) -> None:
        """Return when the topics are saved and have routes."""
        self._topics.put(topics)
        registration = self._pending_registration()
        await self._topics.saved()
        await wait_for_registration(registration)

    async def _delete_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        name = TopicHeader.decode(request.fields).topic
        if not name.strip():
            raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if self._topics.is_fixed(name):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic."
            )
        for each in await self._deletions.delete_topic(name):
            await self._remove_queues(each)
        return request.answer()

    async def _remove_queues(self, name: str) -> None:
        """Remove the queues, so that a new topic of this name starts at offset 0, like Java's."""
        if not self._store.queues.of(name):
            return
        for _ in range(REMOVALS_MAX):
            settled = await asyncio.to_thread(self._store.removal.settle)
            if self._store.removal.remove(name, settled):
                return
            waiting = self._store.queues.unconfirmed(name)
            if waiting and not self._store.replica_acks.may_confirm(self._store.log.max_offset):
                break
            await asyncio.sleep(REMOVAL_PAUSE_S)
        reason = (
            f"{waiting} of its messages wait for the confirmation of replicas; delete it again "
            "when enough replicas are connected"
            if waiting
            else "messages keep arriving; stop its producers and delete it again"
        )
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"topic {name:.255} is deleted, but not its queues, because {reason}",
        )

    async def _clean_unused(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        for name in self._unused():
            await self._remove_queues(name)
        return request.answer()

    async def _clean_expired(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Remove the expired queues of deleted topics.

        Existing topics keep their queue offsets; retention removes their files.
        """
        for name in self._unused():
            if all(self._is_expired(name, queue_id) for queue_id in self._store.queues.of(name)):
                await self._remove_queues(name)
        return request.answer()

    def _unused(self) -> list[str]:
        """Return the names of deleted topics that still have queues."""
        kept = set(self._topics.names())
        return [
            name
            for name in self._store.queues.topics()
            if name not in kept and not self._topics.is_fixed(name) and not is_light(name)
        ]

    def _is_expired(self, topic: str, queue_id: int) -> bool:
        """Whether the log no longer has any message of a queue."""
        queues = self._store.queues
        return queues.min_offset(topic, queue_id) >= queues.max_offset(topic, queue_id)

    def _all_topics(self, connection: Connection, request: RemotingCommand) -> Answer:
        content = self._topics.content()
        return answer_with(request, content.encode, len(content.topic_config_table))

    def _topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = self._topics.require(TopicHeader.decode(request.fields).topic)
        return request.answer(body=topic.encode())

    def _system_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=TopicList(self._topics.fixed(), self._address).encode())

    # -- groups -------------------------------------------------------------------------------

    async def _create_group(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        self._groups.put([SubscriptionGroupConfig.decode(request.content)])
        await self._groups.saved()
        return request.answer()

    async def _create_groups(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        self._groups.put(SubscriptionGroupList.decode(_listed(request)).group_config_list)
        await self._groups.saved()
        return request.answer()

    async def _delete_group(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = DeleteGroupHeader.decode(request.fields)
        clean = bool(header.clean_offset)
        for each in await self._deletions.delete_group(header.group_name, with_progress=clean):
            await self._remove_queues(each)
        return request.answer()

    def _all_groups(self, connection: Connection, request: RemotingCommand) -> Answer:
        content = self._groups.content()
        return answer_with(request, content.encode, len(content.subscription_group_table))

    def _group(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = GroupNameHeader.decode(request.fields).group
        group = self._groups.get(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"this broker has no consumer group {name:.255}",
            )
        return request.answer(body=group.encode())

    async def _forbid(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = ForbiddenHeader.decode(request.fields)
        if header.readable is not None:
            check_group(header.group)
            self._topics.require(header.topic)
            self._groups.forbid(header.group, header.topic, not header.readable)
            await self._groups.saved()
        readable = not self._groups.is_forbidden(header.group, header.topic)
        body = GroupForbidden(header.group, header.topic, readable)
        return request.answer(body=body.encode())

    # -- offsets and files -----------------------------------------------------------------

    def _all_offsets(self, connection: Connection, request: RemotingCommand) -> Answer:
        version = self._offsets.saver.version(self._now_ms())
        content = replace(self._offsets.content(), data_version=version)
        return answer_with(request, content.encode, len(content.offset_table))

    def _all_delays(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        version = self._schedule.saver.version(self._now_ms())
        return request.answer(body=replace(self._schedule.content(), data_version=version).encode())

    async def _delete_expired(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        await asyncio.to_thread(self._store.embedded.delete_expired)
        return request.answer()


def _listed(request: RemotingCommand) -> bytes:
    """Return the body as an object; some versions of RocketMQ send a bare list."""
    content = request.content
    if isinstance(loads(content, "the groups"), list):
        return b'{"groupConfigList":' + content + b"}"
    return content
