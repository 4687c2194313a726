"""The broker's own settings, and the reading of a whole ``broker.conf``.

The table follows the store's (:mod:`firetrail.store.config`): Python name, default, key in
``broker.conf``, kind, explanation. One file fills both tables; a key that belongs to neither is
reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from firetrail.broker.takeover.unsupported import Unsupported, refused_settings
from firetrail.errors import ConfigError
from firetrail.format.java_properties import Entry
from firetrail.format.names import TOPIC_PATTERN
from firetrail.remoting.bodies import MASTER_ID
from firetrail.settings.conf_file import BROKERS, NO_KEY, Remark, did_you_mean, read_settings
from firetrail.settings.table import Flag, Group, Setting, Text, Whole, table
from firetrail.store.config import SETTINGS as STORE_SETTINGS
from firetrail.store.config import StoreConfig
from firetrail.store.config_rules import BrokerRole

NOTHING_TO_SET = "the broker has one way of doing this, or does not do it"

FLAG = Flag()
MS = Whole(1, unit="ms")
NAME = Text(TOPIC_PATTERN, "letters, digits and % | _ -")
ADDRESSES = Text(r"[^\s]*", "host:port, several separated by ';', or nothing")
HOST = Text(r"[^\s]+", "a host name or address")

IDENTITY = Group("Broker: who it is", "What clients and name servers know the broker by.")
TOPICS = Group("Broker: topics and groups", "What clients may bring into being by using it.")
CONSUMING = Group("Broker: consuming", "How long pulls wait, and how often offsets are saved.")
TRANSACTIONS = Group("Broker: transactions", "When producers are asked about half messages.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Every setting of a broker beyond those of its store."""

    cluster: str = IDENTITY("DefaultCluster", "brokerClusterName", NAME, "Name of the cluster.")
    name: str = IDENTITY("broker-a", "brokerName", NAME, "Name; RocketMQ's default is the host's.")
    broker_id: int = IDENTITY(
        0, "brokerId", Whole(0), "The id of a master is 0; others are refused with its role."
    )
    bind: str = IDENTITY(
        "127.0.0.1", "", HOST, "Address to listen on. RocketMQ listens on all of the machine's."
    )
    vip_channel: bool = IDENTITY(
        True,
        "",
        FLAG,
        "Listen on the port two below as well, unless the port is a free one: clients with"
        " `vipChannelEnabled` connect there.",
    )
    namesrv: str = IDENTITY(
        "", "namesrvAddr", ADDRESSES, "Name servers to register with, beside the broker's own."
    )
    register_interval_ms: int = IDENTITY(
        30_000, "registerNameServerPeriod", MS, "Pause between registrations."
    )
    permission: int = IDENTITY(
        6, "brokerPermission", Whole(0, 7), "4 to let clients read, 2 to let them write."
    )
    region: str = IDENTITY(
        "DefaultRegion",
        "regionId",
        NAME,
        "Stored with every message as MSG_REGION.",
    )
    trace_on: bool = IDENTITY(
        True, "traceOn", FLAG, "Stored as TRACE_ON: whether clients are to trace it."
    )

    auto_create_topics: bool = TOPICS(
        True, "autoCreateTopicEnable", FLAG, "Make a topic when the first message for it comes."
    )
    auto_create_groups: bool = TOPICS(
        True, "autoCreateSubscriptionGroup", FLAG, "Take consumer groups that nobody has made."
    )
    default_topic_queues: int = TOPICS(
        8, "defaultTopicQueueNums", Whole(1, 10_000), "Most queues of a topic made that way."
    )
    trace_topic: bool = TOPICS(
        False, "traceTopicEnable", FLAG, "Make the topic for message traces at the start."
    )
    trace_topic_name: str = TOPICS("RMQ_SYS_TRACE_TOPIC", "msgTraceTopicName", NAME, "Its name.")

    long_polling: bool = CONSUMING(
        True, "longPollingEnable", FLAG, "Hold a pull that finds nothing as long as it asks for."
    )
    short_polling_ms: int = CONSUMING(
        1_000, "shortPollingTimeMills", MS, "How long it is held otherwise."
    )
    client_expiry_ms: int = CONSUMING(
        120_000, "channelExpiredTimeout", MS, "A client without heartbeats for so long is gone."
    )
    offsets_interval_ms: int = CONSUMING(
        1_000,
        "flushConsumerOffsetInterval",
        MS,
        "Pause between savings of consumer offsets, longer if they take long: at least ten times"
        " that, up to 5 s. RocketMQ's default is 5000.",
    )
    delay_interval_ms: int = CONSUMING(
        500,
        "flushDelayOffsetInterval",
        MS,
        "The same for how far delayed messages went out. RocketMQ's default is 10000.",
    )
    property_filter: bool = CONSUMING(
        True,
        "enablePropertyFilter",
        FLAG,
        "Let consumers choose messages by SQL92. RocketMQ's default is false.",
    )

    server_side_reset: bool = CONSUMING(
        True,
        "useServerSideResetOffset",
        FLAG,
        "Tell a group of a reset of its offsets in the answers to its pulls; false to push it to"
        " its members, as RocketMQ before 5.3 does. Broadcast groups always get it pushed.",
    )
    revive_queues: int = CONSUMING(
        8, "reviveQueueNum", Whole(1, 1024), "Queues of the topic that keeps what was popped."
    )

    reject_transactions: bool = TRANSACTIONS(
        False, "rejectTransactionMessage", FLAG, "Take no half messages."
    )
    transaction_timeout_ms: int = TRANSACTIONS(
        6_000, "transactionTimeOut", MS, "Age at which a producer is asked for the first time."
    )
    transaction_check_interval_ms: int = TRANSACTIONS(
        30_000, "transactionCheckInterval", MS, "Pause between two rounds of asking."
    )
    transaction_check_max: int = TRANSACTIONS(
        15, "transactionCheckMax", Whole(1), "After so many questions the message is given up."
    )

    def __post_init__(self) -> None:
        for setting in SETTINGS.values():
            object.__setattr__(self, setting.name, setting.checked(getattr(self, setting.name)))

    @property
    def name_servers(self) -> list[str]:
        """The addresses in ``namesrv``."""
        return [address for address in self.namesrv.split(";") if address]

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed."""
        for name, value in changes.items():
            if name not in SETTINGS:
                raise ConfigError(name, value, f"no such setting{did_you_mean(name, SETTINGS)}")
        return replace(self, **changes)


SETTINGS: Mapping[str, Setting] = table(BrokerConfig)
"""The table: every setting by its Python name."""

LIVE = frozenset(
    [
        "permission",
        "register_interval_ms",
        "auto_create_topics",
        "auto_create_groups",
        "default_topic_queues",
        "long_polling",
        "short_polling_ms",
        "client_expiry_ms",
        "offsets_interval_ms",
        "delay_interval_ms",
        "property_filter",
        "server_side_reset",
        "reject_transactions",
        "transaction_timeout_ms",
        "transaction_check_interval_ms",
        "transaction_check_max",
    ]
)
"""Settings that can be changed while the broker runs."""


@dataclass(frozen=True, slots=True)
class LoadedBroker:
    """The settings in a ``broker.conf``, and what to know about the rest of it."""

    broker: BrokerConfig
    store: StoreConfig
    remarks: tuple[Remark, ...]
    refused: tuple[Unsupported, ...] = ()
    """What asks for something that the broker does not do, and should not be passed over."""


def load_entries(entries: Mapping[str, Entry]) -> LoadedBroker:
    """The settings in a ``broker.conf``; ConfigError for a value that cannot be understood."""
    names = {name for setting in SETTINGS.values() for name in setting.names_in_file}
    store_names = {name for line in STORE_SETTINGS.values() for name in line.names_in_file}
    reading = read_settings(SETTINGS, {k: v for k, v in entries.items() if k in names})
    others = {k: v for k, v in entries.items() if k not in names}
    store = StoreConfig.from_entries(others)
    known = names | store_names
    unknown = tuple(
        replace(remark, detail=f"{NO_KEY}{_hint(remark.key, known)}") for remark in store.unknown
    )
    refused = tuple(refused_settings(entries))
    said = {each.name for each in refused}
    ignored = tuple(
        replace(remark, detail=remark.detail.replace(BROKERS, NOTHING_TO_SET))
        for remark in store.ignored
        if remark.key not in said
    )
    broker = BrokerConfig(**reading.values)
    check_id(broker, store.config, entries["brokerId"].place if "brokerId" in entries else "")
    return LoadedBroker(
        broker,
        store.config,
        unknown + tuple(reading.adjusted) + store.adjusted + ignored,
        refused,
    )


def _hint(key: str, known: Iterable[str]) -> str:
    if key == "fastListenPort":
        return (
            "; the port for clients with vipChannelEnabled is always two below listenPort, and "
            "vip_channel=false switches it off"
        )
    return did_you_mean(key, known)


def check_id(broker: BrokerConfig, store: StoreConfig, place: str = "") -> None:
    """ConfigError for a master that nobody could send to: clients look for it under id 0."""
    if broker.broker_id != MASTER_ID and store.role is not BrokerRole.SLAVE:
        raise ConfigError(
            "brokerId",
            broker.broker_id,
            f"{place}the id of a master is {MASTER_ID}, and clients send to no other; remove the "
            "key, and give brokers different names by brokerName",
        )
