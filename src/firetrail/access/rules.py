"""The one table of permissions: what each request requires, by its code.

The module cannot be imported if a request to a server has no row, and requests with other codes are
refused. The needs of a row are computed from the names in the request. If a request names a record
instead of a topic (33, 36, 37, 309, 323), its handler checks the permission for the topic of the
record that it has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from firetrail.access.implied_permissions import (
    CLUSTER,
    CREATE,
    DELETE,
    GET,
    GROUP,
    LIST,
    PUB,
    SUB,
    TOPIC,
    UPDATE,
    consumed,
    group_need,
    topic_need,
)
from firetrail.auth.caller import NO_PERMISSION
from firetrail.auth.resources import WHOLE, Action, Requirement, ResourceType, need
from firetrail.errors import FormatError, RequestError
from firetrail.format.batch import has_property
from firetrail.format.kernels.properties import parse_properties
from firetrail.format.light import listed_names
from firetrail.format.names import reply_topic, retry_topic
from firetrail.format.properties import INNER_MULTI_DISPATCH
from firetrail.format.values.truths import is_true_field
from firetrail.remoting.messages.bodies import (
    CheckClientBody,
    HeartbeatData,
    LockBody,
    QueryAssignmentBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
)
from firetrail.remoting.messages.headers import SendHeader, SendHeaderV2
from firetrail.remoting.messages.pop.pop_bodies import BatchAckBody, RequestModeBody
from firetrail.remoting.messages.requests import REQUESTS, RequestTarget
from firetrail.remoting.wire.codes import PLAIN_CODES, USER_CODES, request_name
from firetrail.remoting.wire.codes import RequestCode as Code
from firetrail.remoting.wire.command import RemotingCommand


class ReceivedRequest(NamedTuple):
    """A request, and the cluster of the server that received it."""

    request: RemotingCommand
    cluster: str

    def name(self, field: str) -> str:
        """Return a name in the header; raise RequestError if it is missing."""
        value = self.request.fields.get(field)
        if not value or value.isspace():
            raise RequestError(
                NO_PERMISSION,
                f"the request lacks the field {field}, which names the resource to check",
            )
        return value

    def names(self, *fields: str) -> Iterator[str]:
        """Yield the names in the fields that are present."""
        for field in fields:
            value = self.request.fields.get(field)
            if value and not value.isspace():
                yield value


Needs = Callable[[ReceivedRequest], Iterable[Requirement]]
RuleKey = Callable[[RemotingCommand], tuple[str, ...] | None]


def _no_key(request: RemotingCommand) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table.

    Attributes:
        needs: Returns the permissions that a request requires. Without any, a valid signature is
            enough.
        is_admin: Whether the request changes or reveals the server. Such a request cannot be on a
            white list.
        is_super: Whether only super users may send it, even if permissions are not checked.
        is_routine: Whether brokers and dashboards repeat it all the time. The audit log then has
            the first one of a connection.
        in_body: Whether the names of topics and groups are in its body. The audit log takes them
            from the required permissions.
        key: Returns the names that alone determine what a request requires, so that a permission
            that was found once is kept; None if it also depends on something else. The default
            returns None.
    """

    needs: Needs
    is_admin: bool = False
    is_super: bool = False
    is_routine: bool = False
    in_body: bool = False
    key: RuleKey = _no_key


def _nothing(asked: ReceivedRequest) -> Iterable[Requirement]:
    return ()


def _named(*wanted: tuple[str, ResourceType, tuple[Action, ...]]) -> Needs:
    """Return the needs of a request whose names are all in its header and required."""

    def needs(asked: ReceivedRequest) -> Iterator[Requirement]:
        for field, kind, actions in wanted:
            name = asked.name(field)
            yield topic_need(name, *actions) if kind is TOPIC else need(kind, name, *actions)

    return needs


def _on_cluster(*actions: Action) -> Rule:
    """A rule for a request about the whole server."""

    def needs(asked: ReceivedRequest) -> Iterator[Requirement]:
        yield need(CLUSTER, asked.cluster or WHOLE, *actions)

    return Rule(needs, is_admin=True, is_routine=actions == (GET,))


def _whole(kind: ResourceType) -> Rule:
    """A rule for a list of all resources of a type."""

    def needs(asked: ReceivedRequest) -> Iterator[Requirement]:
        cluster = need(CLUSTER, asked.cluster or WHOLE, GET)
        yield Requirement(kind, WHOLE, frozenset({LIST}), otherwise=cluster)

    return Rule(needs, is_admin=True, is_routine=True)


def _topic(*actions: Action, field: str = "topic") -> Rule:
    return Rule(_named((field, TOPIC, actions)), is_admin=_is_admin(actions))


def _group(*actions: Action, field: str = "consumerGroup") -> Rule:
    return Rule(_named((field, GROUP, actions)), is_admin=_is_admin(actions))


def _both(*actions: Action, group: str = "consumerGroup") -> Rule:
    return Rule(
        _named(("topic", TOPIC, actions), (group, GROUP, actions)), is_admin=_is_admin(actions)
    )


def _in_body(needs: Needs, *, is_admin: bool = False) -> Rule:
    return Rule(needs, is_admin=is_admin, in_body=True)


def _is_admin(actions: Iterable[Action]) -> bool:
    return set(actions) <= {CREATE, UPDATE, DELETE}


# -- messages ---------------------------------------------------------------------------------


def _send(header: type[SendHeader]) -> Rule:
    """A rule for a send: a message, or a batch if the header says so, with any code.

    The properties in the header count for each message of a batch.
    """
    field, properties, batch = map(header.wire_name, ("topic", "properties", "batch"))

    def names_queues_in_body(request: RemotingCommand) -> bool:
        return is_true_field(request.fields.get(batch)) and _names_light_queues(request.content)

    def needs(asked: ReceivedRequest) -> Iterator[Requirement]:
        yield topic_need(asked.name(field), PUB)
        yield from _dispatched(asked.request.fields.get(properties, ""))
        if names_queues_in_body(asked.request):
            yield need(TOPIC, WHOLE, PUB)

    def key(request: RemotingCommand) -> tuple[str, ...] | None:
        if INNER_MULTI_DISPATCH in request.fields.get(properties, ""):
            return None
        return None if names_queues_in_body(request) else (request.fields.get(field, ""),)

    return Rule(needs, key=key)


def _names_light_queues(batch: bytes | memoryview) -> bool:
    """Return whether a message of a batch names light queues, or may: the batch is broken."""
    try:
        return has_property(batch, INNER_MULTI_DISPATCH)
    except FormatError:
        return True


def _reply(header: type[SendHeader]) -> Rule:
    """A rule for a reply, which is pushed to a producer, and stored in any topic."""
    send = _send(header)

    def needs(asked: ReceivedRequest) -> Iterator[Requirement]:
        yield from send.needs(asked)
        yield topic_need(reply_topic(asked.cluster), PUB)

    return Rule(needs)


def _dispatched(properties: str) -> Iterator[Requirement]:
    """Yield the needs for the queues that the properties of a message name.

    Firetrail only fills light queues. A Java broker that takes the folder over fills any.
    """
    if INNER_MULTI_DISPATCH in properties:
        names = parse_properties(properties).get(INNER_MULTI_DISPATCH, "")
        yield from (topic_need(queue, PUB) for queue in listed_names(names))


def _consume(asked: ReceivedRequest) -> Iterable[Requirement]:
    return consumed(asked.name("topic"), asked.name("consumerGroup"))


def _consume_key(request: RemotingCommand) -> tuple[str, ...]:
    return request.fields.get("topic", ""), request.fields.get("consumerGroup", "")


def _end_transaction(asked: ReceivedRequest) -> Iterator[Requirement]:
    yield from (topic_need(topic, PUB) for topic in asked.names("topic"))


def _view(asked: ReceivedRequest) -> Iterator[Requirement]:
    yield from (topic_need(topic, SUB, GET) for topic in asked.names("topic"))


def _heartbeat(asked: ReceivedRequest) -> Iterator[Requirement]:
    for consumer in HeartbeatData.decode(asked.request.content).consumer_data_set:
        group = consumer.group_name
        yield group_need(group, SUB)
        for subscription in consumer.subscription_data_set:
            if subscription.topic != retry_topic(group):
                yield from consumed(subscription.topic, group)


def _unregister(asked: ReceivedRequest) -> Iterator[Requirement]:
    yield from (group_need(group, SUB) for group in asked.names("consumerGroup"))


def _lock(asked: ReceivedRequest) -> Iterator[Requirement]:
    body = LockBody.decode(asked.request.content)
    yield group_need(body.consumer_group, SUB)
    for queue in body.mq_set:
        yield from consumed(queue.topic, body.consumer_group)


def _check_client(asked: ReceivedRequest) -> Iterable[Requirement]:
    body = CheckClientBody.decode(asked.request.content)
    return consumed(body.subscription_data.topic, body.group)


def _assignment(asked: ReceivedRequest) -> Iterable[Requirement]:
    body = QueryAssignmentBody.decode(asked.request.content)
    return consumed(body.topic, body.consumer_group)


def _acks(asked: ReceivedRequest) -> Iterator[Requirement]:
    for ack in BatchAckBody.decode(asked.request.content).acks:
        yield from consumed(ack.topic, ack.group)


# -- administration ---------------------------------------------------------------------------


def _create_topics(asked: ReceivedRequest) -> Iterator[Requirement]:
    for topic in TopicConfigList.decode(asked.request.content).topic_config_list:
        yield topic_need(topic.topic_name, CREATE)


def _create_group(asked: ReceivedRequest) -> Iterator[Requirement]:
    yield group_need(SubscriptionGroupConfig.decode(asked.request.content).group_name, CREATE)


def _create_groups(asked: ReceivedRequest) -> Iterator[Requirement]:
    for group in SubscriptionGroupList.decode(asked.request.content).group_config_list:
        yield group_need(group.group_name, CREATE)


def _get_named(groups: tuple[str, ...]) -> Rule:
    """A rule for a request that names a topic, groups, or both: each of them, at least one."""

    def needs(asked: ReceivedRequest) -> Iterator[Requirement]:
        topics = list(asked.names("topic"))
        names = [name for text in asked.names(*groups) for name in text.split(",") if name]
        if not topics and not names:
            raise RequestError(NO_PERMISSION, "the request names neither a topic nor a group")
        yield from (topic_need(topic, GET) for topic in topics)
        yield from (group_need(name, GET) for name in names)

    return Rule(needs)


def _clone(asked: ReceivedRequest) -> Iterator[Requirement]:
    yield group_need(asked.name("srcGroup"), GET)
    yield group_need(asked.name("destGroup"), UPDATE)
    yield from (topic_need(topic, UPDATE) for topic in asked.names("topic"))


def _running_info(asked: ReceivedRequest) -> Iterator[Requirement]:
    has_stacks = is_true_field(asked.request.fields.get("jstackEnable"))
    yield group_need(asked.name("consumerGroup"), UPDATE if has_stacks else GET)


def _request_mode(asked: ReceivedRequest) -> Iterator[Requirement]:
    body = RequestModeBody.decode(asked.request.content)
    yield topic_need(body.topic, UPDATE)
    yield group_need(body.consumer_group, UPDATE)


def _register(asked: ReceivedRequest) -> Iterator[Requirement]:
    """Yield the needs of a broker that registers: for its cluster, and for that of the server.

    Otherwise a user of another cluster could add brokers to the routes of this one.
    """
    for name in sorted({asked.name("clusterName"), asked.cluster} - {""}):
        yield need(CLUSTER, name, UPDATE)


_SIGNED = Rule(_nothing)
_SEND = _send(SendHeader)
_SEND_V2 = _send(SendHeaderV2)
_SUPER = Rule(_nothing, is_admin=True, is_super=True)
_OFFSETS = _topic(SUB, GET)
_CONSUME = Rule(_consume, key=_consume_key)
_MANAGE = _on_cluster(UPDATE)
_REGISTER = Rule(_register, is_admin=True, is_routine=True)
_INSPECT = _on_cluster(GET)
_GET_BOTH = _get_named(("consumerGroup", "group", "filterGroups", "compareGroup"))

_ROWS: Mapping[int, Rule] = {
    # messages
    Code.SEND_MESSAGE: _SEND,
    Code.SEND_MESSAGE_V2: _SEND_V2,
    Code.SEND_BATCH_MESSAGE: _SEND_V2,
    Code.SEND_REPLY_MESSAGE: _reply(SendHeader),
    Code.SEND_REPLY_MESSAGE_V2: _reply(SendHeaderV2),
    Code.RECALL_MESSAGE: _topic(PUB),
    Code.END_TRANSACTION: Rule(_end_transaction),
    Code.CONSUMER_SEND_MSG_BACK: _group(SUB, field="group"),
    Code.PULL_MESSAGE: _CONSUME,
    Code.LITE_PULL_MESSAGE: _CONSUME,
    Code.POP_MESSAGE: _CONSUME,
    Code.ACK_MESSAGE: _CONSUME,
    Code.BATCH_ACK_MESSAGE: _in_body(_acks),
    Code.PEEK_MESSAGE: _CONSUME,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _CONSUME,
    Code.NOTIFICATION: _CONSUME,
    Code.POLLING_INFO: _both(SUB, GET),
    Code.QUERY_MESSAGE: _OFFSETS,
    Code.VIEW_MESSAGE_BY_ID: Rule(_view),
    Code.QUERY_CONSUMER_OFFSET: _both(SUB, GET),
    Code.UPDATE_CONSUMER_OFFSET: _both(SUB, UPDATE),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _OFFSETS,
    Code.GET_MAX_OFFSET: _OFFSETS,
    Code.GET_MIN_OFFSET: _OFFSETS,
    Code.GET_EARLIEST_MSG_STORETIME: _OFFSETS,
    # clients
    Code.HEART_BEAT: _in_body(_heartbeat),
    Code.UNREGISTER_CLIENT: Rule(_unregister),
    Code.GET_CONSUMER_LIST_BY_GROUP: _group(SUB, GET),
    Code.LOCK_BATCH_MQ: _in_body(_lock),
    Code.UNLOCK_BATCH_MQ: _in_body(_lock),
    Code.CHECK_CLIENT_CONFIG: _in_body(_check_client),
    Code.QUERY_ASSIGNMENT: _in_body(_assignment),
    # topics and groups
    Code.UPDATE_AND_CREATE_TOPIC: _topic(CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _in_body(_create_topics, is_admin=True),
    Code.DELETE_TOPIC_IN_BROKER: _topic(DELETE),
    Code.GET_TOPIC_CONFIG: _topic(GET),
    Code.GET_TOPIC_STATS_INFO: _topic(GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _topic(GET),
    Code.GET_ALL_TOPIC_CONFIG: _whole(TOPIC),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _in_body(_create_group, is_admin=True),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _in_body(_create_groups, is_admin=True),
    Code.DELETE_SUBSCRIPTIONGROUP: _group(DELETE, field="groupName"),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _group(GET, field="group"),
    Code.QUERY_TOPICS_BY_CONSUMER: _group(GET, field="group"),
    Code.GET_CONSUMER_CONNECTION_LIST: _group(GET),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _whole(GROUP),
    Code.GET_CONSUMER_RUNNING_INFO: Rule(_running_info),
    Code.GET_CONSUME_STATS: _GET_BOTH,
    Code.QUERY_CONSUME_TIME_SPAN: _GET_BOTH,
    Code.QUERY_CORRECTION_OFFSET: _GET_BOTH,
    Code.QUERY_CONSUME_QUEUE: _GET_BOTH,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _GET_BOTH,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _GET_BOTH,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _both(UPDATE, group="group"),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _both(UPDATE, group="group"),
    Code.CLONE_GROUP_OFFSET: Rule(_clone, is_admin=True),
    Code.SET_MESSAGE_REQUEST_MODE: _in_body(_request_mode, is_admin=True),
    Code.CONSUME_MESSAGE_DIRECTLY: _group(UPDATE),
    Code.RESUME_CHECK_HALF_MESSAGE: _SIGNED,
    # the broker
    Code.UPDATE_BROKER_CONFIG: _MANAGE,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _MANAGE,
    Code.CLEAN_UNUSED_TOPIC: _MANAGE,
    Code.DELETE_EXPIRED_COMMITLOG: _MANAGE,
    Code.EXCHANGE_BROKER_HA_INFO: _MANAGE,
    Code.PROMOTE_REPLICA: _MANAGE,
    Code.HAND_OVER: _MANAGE,
    Code.STEP_DOWN: _MANAGE,
    Code.GET_LOG_RECORDS: _MANAGE,  # as for the HA port, which sends the whole log
    Code.RECOVER_GROUP: _MANAGE,
    Code.GET_BROKER_CONFIG: _INSPECT,
    Code.GET_BROKER_RUNTIME_INFO: _INSPECT,
    Code.GET_PRODUCER_CONNECTION_LIST: _INSPECT,
    Code.VIEW_BROKER_STATS_DATA: _INSPECT,
    Code.GET_BROKER_CONSUME_STATS: _INSPECT,
    Code.GET_ALL_PRODUCER_INFO: _INSPECT,
    Code.GET_ALL_CONSUMER_OFFSET: _INSPECT,
    Code.GET_ALL_DELAY_OFFSET: _INSPECT,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _INSPECT,
    Code.GET_TIMER_CHECK_POINT: _INSPECT,
    Code.GET_TIMER_METRICS: _INSPECT,
    Code.GET_BROKER_HA_STATUS: _INSPECT,
    Code.GET_BROKER_EPOCH_CACHE: _INSPECT,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _INSPECT,
    Code.GET_REPLICA_STATUS: _INSPECT,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _SIGNED,
    # the name server
    Code.GET_ROUTEINFO_BY_TOPIC: _topic(PUB, SUB, GET),
    Code.GET_BROKER_CLUSTER_INFO: _SIGNED,
    Code.GET_BROKER_MEMBER_GROUP: _SIGNED,
    Code.REGISTER_BROKER: _REGISTER,
    Code.UNREGISTER_BROKER: _REGISTER,
    Code.BROKER_HEARTBEAT: _REGISTER,
    Code.REGISTER_TOPIC_IN_NAMESRV: _MANAGE,
    Code.QUERY_DATA_VERSION: _REGISTER,
    Code.PUT_KV_CONFIG: _MANAGE,
    Code.DELETE_KV_CONFIG: _MANAGE,
    Code.WIPE_WRITE_PERM_OF_BROKER: _MANAGE,
    Code.ADD_WRITE_PERM_OF_BROKER: _MANAGE,
    Code.DELETE_TOPIC_IN_NAMESRV: _MANAGE,
    Code.UPDATE_NAMESRV_CONFIG: _MANAGE,
    Code.GET_KV_CONFIG: _INSPECT,
    Code.GET_KVLIST_BY_NAMESPACE: _INSPECT,
    Code.GET_NAMESRV_CONFIG: _INSPECT,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _SIGNED,
    Code.GET_TOPICS_BY_CLUSTER: _SIGNED,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _SIGNED,
    Code.GET_UNIT_TOPIC_LIST: _SIGNED,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: _SIGNED,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _SIGNED,
    # users and policies
    **{code: _SUPER for code in (*USER_CODES, *PLAIN_CODES)},
}


def _checked(rows: Mapping[int, Rule]) -> Mapping[int, Rule]:
    """Return the rows; raise ValueError if they are not those of the requests to servers."""
    servers = (RequestTarget.BROKER, RequestTarget.NAME_SERVER)
    answered = {code for code, row in REQUESTS.items() if row.target in servers}
    if wrong := sorted(answered ^ rows.keys()):
        names = ", ".join(request_name(code) for code in wrong)
        raise ValueError(f"these need a row here and in remoting/messages/requests.py: {names}")
    return rows


RULES: Mapping[int, Rule] = _checked(_ROWS)
"""The rules by request code. There is one for each request that brokers or name servers answer."""
