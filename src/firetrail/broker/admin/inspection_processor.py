"""Details that ``mqadmin`` and the dashboard ask for: statistics, queue units, producers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.services.clients import LANGUAGES, Client
from firetrail.broker.services.traffic import DAY, HOUR, MINUTE, TrafficCount
from firetrail.errors import ConfigError, RequestError
from firetrail.format.names import parse_group_key
from firetrail.format.values.integers import INT64_MAX
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler
from firetrail.remoting.messages.admin.admin_bodies import (
    BrokerStatsData,
    ColdDataInfo,
    ConsumeQueueBody,
    ConsumeQueueEntry,
    CorrectionOffsets,
    ProducerInfo,
    ProducerTable,
)
from firetrail.remoting.messages.admin.admin_headers import (
    ConsumeQueueHeader,
    CorrectionHeader,
    StatsHeader,
)
from firetrail.remoting.messages.bodies import SubscriptionData
from firetrail.remoting.servers.large_answers import answer_with
from firetrail.remoting.wire.codes import Language, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.reads.reader import tag_hashes

UNITS_MAX = 1_000
"""Maximum number of queue units in one answer."""


class InspectionProcessor:
    """Handles VIEW_BROKER_STATS_DATA, QUERY_CONSUME_QUEUE and similar requests."""

    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._offsets = state.offsets
        self._clients = state.clients
        self._traffic = state.traffic
        self._config = state.config
        self._now_ms = state.system.clock.now_ms
        self.handlers: dict[int, Handler] = {
            RequestCode.VIEW_BROKER_STATS_DATA: self._stats,
            RequestCode.QUERY_CONSUME_QUEUE: self._consume_queue,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.QUERY_CORRECTION_OFFSET: self._correction,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: self._cold_data,
        }

    # -- statistics ---------------------------------------------------------------------------

    async def _stats(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = StatsHeader.decode(request.fields)
        await asyncio.to_thread(self._traffic.count_puts)
        count = self._count(header.stats_name, header.stats_key)
        if count is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name:.100}> <{header.stats_key:.255}> not exist",
            )
        size = header.stats_name.endswith("_SIZE")
        figure = self._traffic.bytes if size else self._traffic.messages
        body = BrokerStatsData(*(figure(count, span) for span in (MINUTE, HOUR, DAY)))
        return request.answer(body=body.encode())

    def _count(self, name: str, key: str) -> TrafficCount | None:
        """Return the counter that has this name and key in RocketMQ, None if there is none."""
        traffic = self._traffic
        topic, group = parse_group_key(key)
        match name:
            case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE":
                return traffic.topics.get(key)
            case "GROUP_GET_NUMS" | "GROUP_GET_SIZE":
                return traffic.groups.get((topic, group))
            case "SNDBCK_PUT_NUMS":
                return traffic.sent_back.get((topic, group))
            case "BROKER_PUT_NUMS" if key == self._config.cluster:
                return traffic.put
            case "BROKER_GET_NUMS" if key == self._config.cluster:
                return traffic.got
        return None

    # -- queues -------------------------------------------------------------------------------

    def _consume_queue(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = ConsumeQueueHeader.decode(request.fields)
        topic, queue_id = header.topic, header.queue_id
        if queue_id not in self._store.queues.of(topic):
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic:.255} is not exist!")
        wanted = None
        remark = None
        if header.consumer_group:
            wanted = self._clients.subscription(header.consumer_group, topic)
            if wanted is None:
                remark = f"{header.consumer_group:.255}@{topic} is not online!"
        matches = _tag_test(wanted)
        end = header.index + min(max(header.count, 0), UNITS_MAX)
        units = [
            self._entry(topic, queue_id, offset, matches) for offset in range(header.index, end)
        ]
        body = ConsumeQueueBody(
            [unit for unit in units if unit is not None],
            self._store.queues.min_offset(topic, queue_id),
            self._store.queues.max_offset(topic, queue_id),
            wanted,
            remark,
        )
        return request.answer(body=body.encode())

    def _entry(
        self, topic: str, queue_id: int, offset: int, matches: Callable[[int], bool]
    ) -> ConsumeQueueEntry | None:
        unit = self._store.queues.unit(topic, queue_id, offset)
        if unit is None:
            return None
        found = matches(unit.tags_code)
        return ConsumeQueueEntry(unit.physical_offset, unit.size, unit.tags_code, eval=found)

    # -- producers and offsets ----------------------------------------------------------------

    def _all_producers(self, connection: Connection, request: RemotingCommand) -> Answer:
        now_ms = self._now_ms()
        found = {
            group: [(client, now_ms - self._clients.silent_ms(client)) for client in each.values()]
            for group, each in self._clients.producers.items()
        }
        return answer_with(request, partial(_encoded, found), sum(map(len, found.values())))

    def _correction(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the lowest offset of all groups in each queue, for a group that follows them.

        For a queue in which the group to compare with has a lower offset, return the largest
        number.
        """
        header = CorrectionHeader.decode(request.fields)
        excluded = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for group, queues in self._offsets.of_topic(header.topic).items():
            for queue_id, offset in queues.items() if group not in excluded else ():
                if offset >= self._store.queues.min_offset(header.topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        compared = self._offsets.of_group(header.compare_group or "").get(header.topic, {})
        for queue_id, offset in compared.items():
            if lowest.get(queue_id, INT64_MAX) > offset:
                lowest[queue_id] = INT64_MAX
        return request.answer(body=CorrectionOffsets(lowest).encode())

    # -- features that this broker does not have ----------------------------------------------

    def _cold_data(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer that no group is limited in reading old messages."""
        return request.answer(body=ColdDataInfo().encode())


def _tag_test(wanted: SubscriptionData | None) -> Callable[[int], bool]:
    """Return a function that decides whether a subscription selects messages with this tag's
    hash."""
    if wanted is None:
        return lambda code: False
    try:
        tags = tag_hashes(wanted.sub_string) if wanted.is_by_tag else None
    except ConfigError:  # its pulls are refused
        tags = frozenset()
    return lambda code: tags is None or code in tags


def _encoded(found: Mapping[str, Sequence[tuple[Client, int]]]) -> bytes:
    """Encode the producers of each group, with the times of their last heartbeats."""
    table = {
        group: [
            ProducerInfo(
                client.client_id,
                client.connection.peer,
                LANGUAGES.get(client.language, Language.OTHER.name),
                client.version,
                seen_ms,
            )
            for client, seen_ms in clients
        ]
        for group, clients in sorted(found.items())
    }
    return ProducerTable(table).encode()
