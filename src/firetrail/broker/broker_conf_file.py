"""The reader of a whole ``broker.conf``.

One file fills two tables: the settings of the broker and those of its store. A key that belongs to
neither is reported.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from firetrail.broker.broker_config import SETTINGS, BrokerConfig
from firetrail.broker.unsupported import Unsupported, refused_settings
from firetrail.errors import ConfigError
from firetrail.format.files.java_properties import Entry
from firetrail.remoting.messages.bodies import MASTER_ID
from firetrail.settings.conf_file import BROKERS, NO_KEY, Remark, read_settings, refuse_typos
from firetrail.store.settings.config_rules import BrokerRole
from firetrail.store.settings.store_config import SETTINGS as STORE_SETTINGS
from firetrail.store.settings.store_config import StoreConfig
from firetrail.text import did_you_mean, typo_of
from firetrail.tls.tls_config import refuse_misplaced

NOTHING_TO_SET = "the broker has no setting for this"
_ROLE_KEYS = frozenset(STORE_SETTINGS["role"].names_in_file)


@dataclass(frozen=True, slots=True)
class LoadedBroker:
    """The settings in a ``broker.conf``, and remarks about its other keys."""

    broker: BrokerConfig
    store: StoreConfig
    remarks: tuple[Remark, ...]
    refused: tuple[Unsupported, ...] = ()
    """Settings that request an unsupported feature and must not be ignored silently."""


def load_entries(entries: Mapping[str, Entry]) -> LoadedBroker:
    """Return the settings in a ``broker.conf``; raise ConfigError for an invalid value.

    A misspelt key is refused, and so is a setting of TLS, which belongs in another file. A member
    of a group whose role is not set is a SYNC_MASTER when it is elected.
    """
    refuse_misplaced(entries)
    names = {name for setting in SETTINGS.values() for name in setting.names_in_file}
    store_names = {name for line in STORE_SETTINGS.values() for name in line.names_in_file}
    reading = read_settings(SETTINGS, {k: v for k, v in entries.items() if k in names})
    others = {k: v for k, v in entries.items() if k not in names}
    store = StoreConfig.from_entries(others)
    known = names | store_names
    unknown = tuple(
        replace(
            remark, detail=f"{NO_KEY}{_hint(remark.key, known)}", typo_of=typo_of(remark.key, known)
        )
        for remark in store.unknown
    )
    refuse_typos(unknown)
    refused = tuple(refused_settings(entries))
    refused_keys = {each.name for each in refused}
    ignored = tuple(
        replace(remark, detail=remark.detail.replace(BROKERS, NOTHING_TO_SET))
        for remark in store.ignored
        if remark.key not in refused_keys
    )
    broker = BrokerConfig(**reading.values)
    config = store.config
    if broker.etcd_servers and not _ROLE_KEYS & entries.keys():
        config = config.replace(role=BrokerRole.SYNC_MASTER)  # a failover must lose nothing
    check_id(broker, config, entries["brokerId"].place if "brokerId" in entries else "")
    return LoadedBroker(
        broker, config, unknown + tuple(reading.adjusted) + store.adjusted + ignored, refused
    )


def _hint(key: str, known: Iterable[str]) -> str:
    if key == "fastListenPort":
        return (
            "; the port for clients with vipChannelEnabled is always two below listenPort, and "
            "vip_channel=false switches it off"
        )
    return did_you_mean(key, known)


def check_id(broker: BrokerConfig, store: StoreConfig, place: str = "") -> None:
    """Raise ConfigError for a master with another id than 0, and for a slave with that id.

    Clients send messages to id 0 only.
    """
    is_slave = store.role is BrokerRole.SLAVE
    if broker.etcd_servers and broker.ha_member == 0:
        raise ConfigError(
            "ha_member",
            broker.ha_member,
            "with etcd_endpoints, give each member of the group its own number, 1 or larger",
        )
    if is_slave and broker.broker_id == MASTER_ID:
        raise ConfigError(
            "brokerId",
            broker.broker_id,
            f"{MASTER_ID} is the id of the master; give each slave of a broker its own id, "
            "1 or larger, and the master's brokerName and brokerClusterName",
            place,
        )
    if not is_slave and broker.broker_id != MASTER_ID:
        raise ConfigError(
            "brokerId",
            broker.broker_id,
            f"the id of a master is {MASTER_ID}, and clients send only to masters; remove "
            "the key, and give each broker its own brokerName",
            place,
        )
