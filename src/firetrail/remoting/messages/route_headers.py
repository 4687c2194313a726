"""Headers of requests to name servers, except those for topics and the registration of brokers."""

from dataclasses import dataclass

from firetrail.remoting.messages.typed_header import Header, Long, OtherText, ShownName, TopicName


@dataclass(frozen=True, slots=True)
class KVHeader(Header):
    """PUT_KV_CONFIG and, without a value, GET_KV_CONFIG and DELETE_KV_CONFIG."""

    namespace: ShownName
    key: ShownName
    value: OtherText | None = None


@dataclass(frozen=True, slots=True)
class NamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: ShownName


@dataclass(frozen=True, slots=True)
class ValueResponse(Header):
    """The answer to GET_KV_CONFIG."""

    value: str


@dataclass(frozen=True, slots=True)
class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: OtherText


@dataclass(frozen=True, slots=True)
class DeleteRouteHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV, everywhere or in one cluster."""

    topic: TopicName
    cluster_name: ShownName | None = None


@dataclass(frozen=True, slots=True)
class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER."""

    broker_name: ShownName


@dataclass(frozen=True, slots=True)
class WipedResponse(Header):
    """The answer to WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: int


@dataclass(frozen=True, slots=True)
class AddedResponse(Header):
    """The answer to ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: int


@dataclass(frozen=True, slots=True)
class DataVersionResponse(Header):
    """The answer to QUERY_DATA_VERSION: whether the broker has to register again."""

    changed: bool


@dataclass(frozen=True, slots=True)
class BrokerGroupHeader(Header):
    """GET_BROKER_MEMBER_GROUP: the brokers of one name."""

    cluster_name: ShownName
    broker_name: ShownName


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatHeader(Header):
    """BROKER_HEARTBEAT."""

    cluster_name: ShownName
    broker_addr: ShownName
    broker_name: ShownName
    broker_id: Long | None = None
