"""The settings of a name server, by their keys in RocketMQ's ``namesrv.conf``."""

# ruff: noqa: RUF009  (the calls in the class body create fields, one value for each instance)

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

from firetrail.access.access_settings import INIT_USER, checked_policy
from firetrail.access.guard import AccessPolicy
from firetrail.auth.credentials import Credentials
from firetrail.errors import ConfigError
from firetrail.format.files.java_properties import Entry
from firetrail.settings.audit_settings import AuditSettings
from firetrail.settings.conf_file import read_settings, refuse_typos
from firetrail.settings.log_settings import LogSettings
from firetrail.settings.server_limits import ServerLimitSettings
from firetrail.settings.settings_table import Flag, Group, Port, Setting, Text, Whole, table
from firetrail.tls.tls_config import refuse_misplaced

UNUSED: Mapping[str, str] = {
    "kvConfigPath sets the location of the only file": "rocketmqHome configStorePath",
    "it tunes threads or buffers that only the Java name server has": """
        *ThreadPoolNums *ThreadPoolQueueCapacity server* client* useEpollNativeSelector
        writeBuffer*WaterMark unRegisterBrokerQueueCapacity shutdownWaitTimeSeconds
        enableShutdownGracefully
        """,
    "controllers and acting masters are not supported": """
        enableControllerInNamesrv supportActingMaster notifyMinBrokerIdChanged *ontroller*
        """,
    "tls.server.mode in the file of tls.config.file turns TLS on": "useTLS",
    "the name server has no setting for this": """
        productEnvName clusterTest needWaitForService waitSecondsForService enableTopicList
        deleteTopicWithBrokerRegistration configBlackList
        """,
}
"""Keys of RocketMQ 4.9 and 5.x that have no effect: patterns of the keys by reason."""

NO_KEY = "is not a key of RocketMQ's name server"

NAME_SERVER = Group(
    "Name server",
    "A name server reads these settings from `namesrv.conf`. In Python, use `NameServerConfig`.",
)
FLAG = Flag()


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(ServerLimitSettings, AuditSettings, LogSettings):
    """The settings of a name server, as keyword arguments. An instance never changes.

    Args:
        bind_address: Address to listen on. Default: 127.0.0.1.
        listen_port: Port to listen on; 0 picks a free one. Default: 9876.
        kv_config_path: File of the key-value store. Default: none, the values are kept in memory.
        scan_interval_ms: Pause between two searches for expired brokers. Default: 5000.
        order_message_enable: Whether routes include the order of brokers of ordered topics.
            Default: False.
        return_order_topics: Whether brokers get that order when they register. Default: True.
        all_topic_list: Whether clients may list the names of all topics. Default: True.
        authentication: Whether every request has to be signed. Default: False.
        authorization: Whether every request needs a permission. Default: False.
        users_folder: Folder with the file of users. Default: none.
        init_user: A super user to create. Default: none.
        tls_config_file: File with the settings of TLS. Default: none, there is no TLS.
        max_connections, connections_per_address, connection_rate_per_address,
        request_rate_per_address, byte_rate_per_address, connections_per_user,
        request_rate_per_user, byte_rate_per_user, limit_loopback, buffered_bytes, stranger_bytes:
            Limits for clients, see ``docs/configuration.md``.
        audit_log, audit_file_bytes, audit_files, audit_rate: The audit log, see there.

    Raises:
        ConfigError: A value is invalid.
    """

    bind_address: str = NAME_SERVER(
        "127.0.0.1",
        "bindAddress",
        Text(r"\S+", "an address or a host name"),
        "Address to listen on. RocketMQ listens on all addresses.",
    )
    listen_port: int = NAME_SERVER(
        9876, "listenPort", Port(), "Port to listen on; 0 picks a free one."
    )
    kv_config_path: str = NAME_SERVER(
        "",
        "kvConfigPath",
        Text(".*", "a path, or nothing"),
        "File of the key-value store. Without one, the values are lost when the name server stops.",
    )
    scan_interval_ms: int = NAME_SERVER(
        5000,
        "scanNotActiveBrokerInterval",
        Whole(0, unit="ms"),
        "Pause between two searches for expired brokers.",
    )
    order_message_enable: bool = NAME_SERVER.live(
        False,
        "orderMessageEnable",
        FLAG,
        "Include the order of brokers in the route of a topic, if an order is set for the topic.",
    )
    return_order_topics: bool = NAME_SERVER.live(
        True,
        "returnOrderTopicConfigToBroker",
        FLAG,
        "Send the orders that are set for topics to brokers when they register.",
    )
    all_topic_list: bool = NAME_SERVER.live(
        True, "enableAllTopicList", FLAG, "Let clients list the names of all topics."
    )
    tls_config_file: str = NAME_SERVER(
        "",
        "tls.config.file",
        Text(".*", "a path, or nothing"),
        "File with the [settings of TLS](#tls-ports).",
    )

    authentication: bool = NAME_SERVER(
        False,
        "authenticationEnabled",
        FLAG,
        "Require every request to be signed by a known user. RocketMQ's name server cannot.",
    )
    authorization: bool = NAME_SERVER(
        False,
        "authorizationEnabled",
        FLAG,
        "Require a permission for every request. It needs `authenticationEnabled`.",
    )
    users_folder: str = NAME_SERVER(
        "",
        "",
        Text(".*", "a path, or nothing"),
        "Folder that contains `config/firetrailUsers.json`, the file with the users and their"
        " policies. It has the form of a broker's file.",
    )
    init_user: Credentials | None = NAME_SERVER(
        None,
        "initAuthenticationUser",
        INIT_USER,
        "A super user that is created at the start if there is none with this name.",
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            SETTINGS[declared.name].checked(getattr(self, declared.name))
        if self.authentication and not self.users_folder:
            raise ConfigError(
                "users_folder", "", "authenticationEnabled needs a folder with the users"
            )
        if self.users_folder and not self.authentication:
            raise ConfigError(
                "users_folder",
                self.users_folder,
                "permissions would not be checked; set authenticationEnabled=true and "
                "authorizationEnabled=true, or remove users_folder",
            )
        self.access_policy()

    def access_policy(self) -> AccessPolicy:
        """Return the checks of the guard; raise ConfigError for a wrong combination of settings."""
        return checked_policy(AccessPolicy(self.authorization), authentication=self.authentication)

    @classmethod
    def from_entries(cls, entries: Mapping[str, Entry]) -> tuple[Self, list[str]]:
        """Return the settings in a file, and remarks about keys that have no effect.

        Args:
            entries: The keys and values of the file.

        Raises:
            ConfigError: A value is invalid, or a setting belongs into the file of TLS.
        """
        refuse_misplaced(entries)
        reading = read_settings(SETTINGS, entries, UNUSED, NO_KEY)
        refuse_typos(reading.unknown)
        return cls(**reading.values), [str(remark) for remark in reading.remarks]

    def changed(self, entries: Mapping[str, Entry]) -> Self:
        """Return a copy with the changes of a request.

        Args:
            entries: The keys and new values.

        Raises:
            ConfigError: A value is invalid, or a key cannot be changed at run time.
        """
        for key, entry in entries.items():
            if key not in CHANGEABLE:
                allowed = ", ".join(CHANGEABLE)
                raise ConfigError(key, entry.text, f"only {allowed} can be changed by request")
        return replace(self, **read_settings(SETTINGS, entries).values)

    def to_properties(self) -> str:
        """Return the content of a file with every key."""
        return "".join(
            f"{setting.key}={setting.written(getattr(self, setting.name))}\n"
            for setting in SETTINGS.values()
        )


SETTINGS: Mapping[str, Setting] = table(NameServerConfig)
"""The table: every setting by its Python name."""

CHANGEABLE = tuple(setting.key for setting in SETTINGS.values() if setting.live)
