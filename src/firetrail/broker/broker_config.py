"""The settings of a broker.

The table has the same form as the store's (:mod:`firetrail.store.settings.store_config`): Python
name, default, key in ``broker.conf``, kind, explanation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from firetrail.access.access_settings import AccessSettings
from firetrail.broker.broker_config_groups import (
    ADDRESS,
    ADDRESSES,
    CONSUMING,
    ENDPOINTS,
    FAILOVER,
    FLAG,
    GRPC,
    HOST,
    HOST_OR_NONE,
    IDENTITY,
    MS,
    NAME,
    NO_PORT,
    REPLICATION,
    TIMER,
    TLS,
    TOPICS,
    TRANSACTIONS,
    WORD,
    Networks,
)
from firetrail.broker.limit_settings import BrokerLimitSettings
from firetrail.errors import ConfigError
from firetrail.format.names import TRACE_TOPIC
from firetrail.format.values.hosts import PORT_MAX, Host
from firetrail.format.values.integers import INT32_MAX
from firetrail.replication.group.lineage import EPOCH_STEP
from firetrail.replication.ha.ha_frames import BODY_MAX
from firetrail.settings.audit_settings import AuditSettings
from firetrail.settings.log_settings import LogSettings
from firetrail.settings.settings_table import Setting, Text, Whole, table
from firetrail.text import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(AccessSettings, BrokerLimitSettings, AuditSettings, LogSettings):
    """Every setting of a broker that is not a setting of its store.

    ``docs/configuration.md`` lists the settings with their keys, defaults and meanings. All are
    keyword arguments. A value that is not allowed raises ConfigError.
    """

    cluster: str = IDENTITY("DefaultCluster", "brokerClusterName", NAME, "Name of the cluster.")
    name: str = IDENTITY(
        "broker-a", "brokerName", NAME, "Name of the broker. RocketMQ's default is the host name."
    )
    broker_id: int = IDENTITY(
        0, "brokerId", Whole(0), "The id of a master is 0. Each slave has its own id, 1 or larger."
    )
    bind: str = IDENTITY(
        "127.0.0.1", "", HOST, "Address to listen on. RocketMQ listens on all addresses."
    )
    vip_channel: bool = IDENTITY(
        True,
        "",
        FLAG,
        "Also listen on the port two below the main port, which clients with `vipChannelEnabled`"
        " connect to. There is no such port if the main port is 0 (any free port).",
    )
    namesrv: str = IDENTITY(
        "",
        "namesrvAddr",
        ADDRESSES,
        "Name servers to register with, in addition to the one that `firetrail up` starts.",
    )
    register_interval_ms: int = IDENTITY.live(
        30_000, "registerNameServerPeriod", MS, "Pause between registrations."
    )
    permission: int = IDENTITY.live(
        6,
        "brokerPermission",
        Whole(0, 7),
        "Sum of 4 (clients may read) and 2 (they may write), as routes tell them. A client with an "
        "older route can still send.",
    )
    region: str = IDENTITY(
        "DefaultRegion",
        "regionId",
        NAME,
        "Value of the property MSG_REGION, which is stored with every message.",
    )
    trace_on: bool = IDENTITY(
        True,
        "traceOn",
        FLAG,
        "Value of the property TRACE_ON, which is stored with every message and tells clients"
        " whether to trace it.",
    )

    auto_create_topics: bool = TOPICS.live(
        True, "autoCreateTopicEnable", FLAG, "Create a topic when its first message arrives."
    )
    auto_create_groups: bool = TOPICS.live(
        True,
        "autoCreateSubscriptionGroup",
        FLAG,
        "Create a consumer group when its first consumer connects.",
    )
    default_topic_queues: int = TOPICS.live(
        8,
        "defaultTopicQueueNums",
        Whole(1, 10_000),
        "Maximum number of queues of a topic that is created automatically.",
    )
    mixed_topics: bool = TOPICS.live(
        True,
        "enableMixedMessageType",
        FLAG,
        "Allow topics with `message.type=MIXED`, which are for messages of every type."
        " RocketMQ's default is false.",
    )
    trace_topic: bool = TOPICS(
        False, "traceTopicEnable", FLAG, "Create the topic for message traces at startup."
    )
    trace_topic_name: str = TOPICS(
        TRACE_TOPIC, "msgTraceTopicName", NAME, "Name of the topic for message traces."
    )

    long_polling: bool = CONSUMING.live(
        True,
        "longPollingEnable",
        FLAG,
        "Hold a pull that finds no message for as long as the consumer asks.",
    )
    short_polling_ms: int = CONSUMING.live(
        1_000,
        "shortPollingTimeMills",
        MS,
        "How long a pull that finds no message is held without long polling.",
    )
    client_expiry_ms: int = CONSUMING.live(
        120_000,
        "channelExpiredTimeout",
        MS,
        "A client that has sent no heartbeat for this long is disconnected.",
    )
    offsets_interval_ms: int = CONSUMING.live(
        1_000,
        "flushConsumerOffsetInterval",
        MS,
        "Pause between two saves of the consumer offsets. If a save takes long, the pause is at"
        " least ten times as long as the save, up to 5 s. RocketMQ's default is 5000.",
    )
    delay_interval_ms: int = CONSUMING.live(
        500,
        "flushDelayOffsetInterval",
        MS,
        "Pause between two saves of the progress of delayed messages. RocketMQ's default is 10000.",
    )
    property_filter: bool = CONSUMING.live(
        True,
        "enablePropertyFilter",
        FLAG,
        "Let consumers filter messages by SQL92 expressions. RocketMQ's default is false.",
    )
    filter_bitmaps: bool = CONSUMING(
        False,
        "enableCalcFilterBitMap",
        FLAG,
        "Evaluate SQL92 filters when messages arrive, so that pulls skip what does not match. It"
        " needs `enableConsumeQueueExt`.",
    )
    bloom_names: int = CONSUMING(
        32,
        "expectConsumerNumUseFilter",
        Whole(1, 10_000),
        "Groups per topic for which the bitmaps of filters are sized.",
    )
    bloom_error_percent: int = CONSUMING(
        20,
        "maxErrorRateOfBloomFilter",
        Whole(1, 99, unit="percent"),
        "Share of messages that a filter rejects only after it has read them.",
    )

    server_side_reset: bool = CONSUMING.live(
        True,
        "useServerSideResetOffset",
        FLAG,
        "Announce an offset reset to a group in the responses to its pulls. If false, send each"
        " member a notification, as RocketMQ before 5.3 does. Members of broadcast groups always"
        " get a notification.",
    )
    revive_queues: int = CONSUMING(
        8,
        "reviveQueueNum",
        Whole(1, 1024),
        "Number of queues of the internal topic that records pops and their acknowledgements.",
    )

    reject_transactions: bool = TRANSACTIONS.live(
        False, "rejectTransactionMessage", FLAG, "Refuse half messages."
    )
    transaction_timeout_ms: int = TRANSACTIONS.live(
        6_000,
        "transactionTimeOut",
        MS,
        "Age of a half message at which its producer is first asked for the outcome.",
    )
    transaction_check_interval_ms: int = TRANSACTIONS.live(
        30_000, "transactionCheckInterval", MS, "Pause between two rounds of checks."
    )
    transaction_check_max: int = TRANSACTIONS.live(
        15,
        "transactionCheckMax",
        Whole(1),
        "Number of checks after which the broker gives up on a half message.",
    )

    timer: bool = TIMER(
        True,
        "timerWheelEnable",
        FLAG,
        "Accept and deliver messages with a delivery time. If false, those that wait are kept.",
    )
    timer_max_delay_s: int = TIMER.live(
        3 * 86_400,
        "timerMaxDelaySec",
        Whole(1, unit="s"),
        "Longest time from the send to the delivery of a message.",
    )
    timer_precision_ms: int = TIMER(
        1_000,
        "timerPrecisionMs",
        Whole(10, 60_000, unit="ms"),
        "Duration of a slot: a message is delivered up to this long after its time, never before"
        " it. If you change it, the files of the timer are rebuilt.",
    )
    timer_roll_window_slots: int = TIMER(
        2 * 86_400,
        "timerRollWindowSlot",
        Whole(0),
        "A message that waits for more slots than this is stored again after that time. If"
        " `fileReservedTime` is short, this happens after two thirds of it.",
    )
    timer_congestion: int = TIMER.live(
        INT32_MAX,
        "timerCongestNumEachSlot",
        Whole(1),
        "Messages per slot above which some are refused; all are at twice this number.",
    )
    timer_log_file_size: int = TIMER(
        100 << 20,
        "mappedFileSizeTimerLog",
        Whole(128, unit="bytes"),
        "Size of the files in `timerlog/`. Existing files keep their size, and RocketMQ starts only"
        " if its setting is the same.",
    )
    recall: bool = TIMER.live(
        True,
        "recallMessageEnable",
        FLAG,
        "Let producers recall messages that wait for their time. RocketMQ's default is false.",
    )
    recall_when_read_only: bool = TIMER.live(
        True,
        "allowRecallWhenBrokerNotWriteable",
        FLAG,
        "Let them do so if `brokerPermission` does not allow sends.",
    )

    master_address: str = REPLICATION(
        "",
        "",
        ADDRESS,
        "Address of the master's broker, for a slave that does not learn it from a name server.",
    )
    promoted_namesrv: str = REPLICATION(
        "",
        "",
        ADDRESSES,
        "Name servers that a slave without `namesrv` registers with once a promotion has made it"
        " the master. `firetrail replica` sets this to those of its master.",
    )
    ha_master_address: str = REPLICATION(
        "",
        "haMasterAddress",
        ADDRESS,
        "Address of the master's HA port, if it is not the one that the master advertises.",
    )
    sync_interval_ms: int = REPLICATION.live(
        3_000,
        "",
        MS,
        "Pause between two copies of the master's topics, groups, offsets and other tables."
        " RocketMQ copies them every 10 s or, since 5.0, every minute.",
    )
    slave_read: bool = REPLICATION.live(
        False,
        "slaveReadEnable",
        FLAG,
        "On a slave, serve consumers; on a master, send consumers that read old messages to a"
        " slave.",
    )
    ha_listen_port: int = REPLICATION(
        0,
        "haListenPort",
        Whole(0, PORT_MAX),
        "HA port. 0 means the port after `listenPort`, or any free port if `listenPort` is 0.",
    )
    ha_host: str = REPLICATION(
        "",
        "brokerIP2",
        HOST_OR_NONE,
        "Host of the HA address that name servers give to replicas. The default is `brokerIP1`.",
    )
    ha_heartbeat_ms: int = REPLICATION(
        5_000,
        "haSendHeartbeatInterval",
        MS,
        "Each side of an HA connection sends something at least this often.",
    )
    ha_silence_ms: int = REPLICATION(
        20_000,
        "haHousekeepingInterval",
        MS,
        "Either side closes an HA connection on which it has received nothing for this long.",
    )
    ha_batch_size: int = REPLICATION(
        256 << 10,
        "haTransferBatchSize",
        Whole(1, BODY_MAX, unit="bytes"),
        "Maximum bytes of the log per transfer to a replica. RocketMQ's default is 32768.",
    )
    ha_flow_control: bool = REPLICATION.live(
        False,
        "haFlowControlEnable",
        FLAG,
        "Limit what is sent to each replica to `ha_max_bytes_per_second`.",
    )
    ha_max_bytes_per_second: int = REPLICATION.live(
        100 << 20,
        "maxHaTransferByteInSecond",
        Whole(1 << 10, unit="bytes"),
        "Maximum bytes per second to one replica, if `ha_flow_control` is on.",
    )
    ha_allowed_peers: str = REPLICATION.live(
        "",
        "",
        Networks(r"[^\s]*", "IP addresses or networks, separated by ';', or nothing"),
        "Addresses that may connect to the HA port, such as `10.1.2.3;10.2.0.0/16`. By default,"
        " this machine may connect, and so may the brokers that name servers list under this"
        " broker's name.",
    )
    ha_java_peers: bool = REPLICATION(
        False,
        "",
        FLAG,
        "Use neither TLS nor signatures between master and replicas, because one of them is a Java"
        " broker, which has neither. Restrict `ha_allowed_peers` then.",
    )

    etcd_endpoints: str = FAILOVER(
        "",
        "",
        ENDPOINTS,
        "Addresses of etcd, which decides which member of the group is the master. All members"
        " have the same cluster and broker name. Leave it empty if the broker's role is fixed.",
    )
    ha_member: int = FAILOVER(
        0,
        "",
        Whole(0, EPOCH_STEP - 1),
        "Number of this member in the group: from 1 to 999, and different for every member. It is"
        " the broker id while the member is a slave.",
    )
    ha_lease_s: int = FAILOVER(
        5,
        "",
        Whole(2, 3600, unit="s"),
        "Duration of the master's lease. A master that cannot renew its lease stops acknowledging"
        " messages after four fifths of this time, and loses the lease at the end of it.",
    )
    ha_lag_ms: int = FAILOVER(
        15_000,
        "haMaxTimeSlaveNotCatchup",
        MS,
        "A member that has not caught up for this long leaves the in-sync set: puts do not wait for"
        " it, and it cannot become the master.",
    )
    etcd_prefix: str = FAILOVER(
        "/firetrail", "", Text(r"/[^\s]*[^\s/]", "a path such as /firetrail"), "Prefix of all keys."
    )
    etcd_user: str = FAILOVER("", "", WORD, "User name for etcd; empty if etcd requires none.")
    etcd_password_file: str = FAILOVER(
        "", "", WORD, "File with the password of that user, which only its owner can read."
    )
    etcd_ca_file: str = FAILOVER(
        "", "", WORD, "Certificates to trust for `https` endpoints; by default the system's."
    )
    etcd_cert_file: str = FAILOVER(
        "", "", WORD, "Certificate of this broker with its key, if etcd requires one."
    )

    grpc_port: int = GRPC(
        NO_PORT,
        "grpcServerPort",
        Whole(NO_PORT, PORT_MAX),
        "Port of the gRPC service; 0 picks a free one. With -1, `firetrail up` opens port 8081, or"
        " none with `--no-grpc`, and `firetrail broker` opens none.",
    )
    grpc_delay_max_ms: int = GRPC(
        24 * 3600 * 1000,
        "maxDelayTimeMills",
        MS,
        "Longest delay of a message that a gRPC client sends. The limit for all clients is"
        " `timerMaxDelaySec`.",
    )

    tls_certificate: str = TLS(
        "",
        "tlsCertPath",
        WORD,
        "PEM file with the certificate of all ports. Without one, only gRPC clients can use TLS,"
        " with a self-signed certificate that is created at each start; Java, Go and C# clients"
        " accept it.",
    )
    tls_key: str = TLS("", "tlsKeyPath", WORD, "PEM file with the private key of the certificate.")
    use_tls: bool = TLS(
        False,
        "useTLS",
        FLAG,
        "Use TLS for requests to name servers and other brokers"
        " ([settings](#tls-requests-to-other-servers)).",
    )
    tls_config_file: str = TLS(
        "", "tls.config.file", WORD, "File with the [settings of TLS](#tls-ports)."
    )

    def __post_init__(self) -> None:
        for setting in SETTINGS.values():
            object.__setattr__(self, setting.name, setting.checked(getattr(self, setting.name)))
        self.access_policy(self.cluster)

    @property
    def etcd_servers(self) -> list[str]:
        """The addresses in ``etcd_endpoints``; none if the role of the broker is fixed."""
        return [address for address in self.etcd_endpoints.split(";") if address]

    @property
    def name_servers(self) -> list[str]:
        """The addresses in ``namesrv``."""
        return [address for address in self.namesrv.split(";") if address]

    @property
    def name_servers_as_master(self) -> list[str]:
        """The name servers with which the broker registers while it is a master."""
        return self.name_servers or [each for each in self.promoted_namesrv.split(";") if each]

    @property
    def ha_address(self) -> str:
        """The address that name servers tell replicas; valid once the broker has started."""
        return str(Host(self.ha_host, self.ha_listen_port))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed.

        Args:
            changes: The new values by the Python names of the settings.

        Raises:
            ConfigError: A setting does not exist, or a value is not allowed.
        """
        for name, value in changes.items():
            if name not in SETTINGS:
                raise ConfigError(name, value, f"no such setting{did_you_mean(name, SETTINGS)}")
        return replace(self, **changes)


SETTINGS: Mapping[str, Setting] = table(BrokerConfig)
"""The table: every setting by its Python name."""
