"""The settings of a name server, by their keys in RocketMQ's ``namesrv.conf``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Self

from firetrail.errors import ConfigError
from firetrail.format.java_properties import Entry

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
    "the name server does this in one fixed way": """
        productEnvName clusterTest needWaitForService waitSecondsForService enableTopicList
        deleteTopicWithBrokerRegistration configBlackList useTLS
        """,
}
"""Keys of RocketMQ 4.9 and 5.x that have no effect: patterns of the keys by reason."""


def _key(name: str, doc: str, *, changeable: bool = False) -> dict[str, Any]:
    return {"key": name, "doc": doc, "changeable": changeable}


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """The settings of a name server. Administrators can change some of them at run time.

    Args:
        bind_address: Address to listen on. Default: 127.0.0.1.
        listen_port: Port to listen on; 0 picks a free one. Default: 9876.
        kv_config_path: File of the key-value store. Default: none, the values are kept in memory.
        scan_interval_ms: Pause between two searches for expired brokers. Default: 5000.
        order_message_enable: Whether routes include the order of brokers of ordered topics.
            Default: False.
        return_order_topics: Whether brokers get that order when they register. Default: True.
        all_topic_list: Whether clients may list the names of all topics. Default: True.
    """

    bind_address: str = field(
        default="127.0.0.1",
        metadata=_key("bindAddress", "Address to listen on. RocketMQ listens on all addresses."),
    )
    listen_port: int = field(
        default=9876, metadata=_key("listenPort", "Port to listen on, 0 for a free one.")
    )
    kv_config_path: str = field(
        default="",
        metadata=_key(
            "kvConfigPath",
            "File of the key-value store. Without one the values are lost at the stop.",
        ),
    )
    scan_interval_ms: int = field(
        default=5000,
        metadata=_key(
            "scanNotActiveBrokerInterval",
            "Pause (ms) between two searches for expired brokers.",
        ),
    )
    order_message_enable: bool = field(
        default=False,
        metadata=_key(
            "orderMessageEnable",
            "Include the order of brokers in the routes of topics that have one.",
            changeable=True,
        ),
    )
    return_order_topics: bool = field(
        default=True,
        metadata=_key(
            "returnOrderTopicConfigToBroker",
            "Send the order of brokers to brokers when they register.",
            changeable=True,
        ),
    )
    all_topic_list: bool = field(
        default=True,
        metadata=_key(
            "enableAllTopicList", "Let clients list the names of all topics.", changeable=True
        ),
    )

    @classmethod
    def from_entries(cls, entries: Mapping[str, Entry]) -> tuple[Self, list[str]]:
        """Return the settings in a file, and remarks about keys that have no effect.

        Args:
            entries: The keys and values of the file.

        Raises:
            ConfigError: A value is invalid.
        """
        remarks = [
            f"{entry.place}{key} {_why_unused(key)}"
            for key, entry in entries.items()
            if key not in KEYS
        ]
        known = {KEYS[key]: entry for key, entry in entries.items() if key in KEYS}
        return cls()._with(known), remarks

    def changed(self, entries: Mapping[str, Entry]) -> Self:
        """Return a copy with the changes of a request.

        Args:
            entries: The keys and new values.

        Raises:
            ConfigError: A value is invalid, or a key cannot be changed at run time.
        """
        changes = {}
        for key, entry in entries.items():
            if key not in CHANGEABLE:
                allowed = ", ".join(CHANGEABLE)
                raise ConfigError(key, entry.text, f"only {allowed} can be changed by request")
            changes[KEYS[key]] = entry
        return self._with(changes)

    def to_properties(self) -> str:
        """Return the content of a file with every key."""
        return "".join(f"{key}={shown(getattr(self, name))}\n" for key, name in KEYS.items())

    def _with(self, texts: Mapping[str, Entry]) -> Self:
        changes: dict[str, Any] = {}
        for declared in fields(self):
            entry = texts.get(declared.name)
            if entry is not None:
                key = declared.metadata["key"]
                changes[declared.name] = _parse(key, entry, type(declared.default))
        return replace(self, **changes)


KEYS: Mapping[str, str] = {f.metadata["key"]: f.name for f in fields(NameServerConfig)}
CHANGEABLE = tuple(f.metadata["key"] for f in fields(NameServerConfig) if f.metadata["changeable"])


def shown(value: Any) -> str:
    """Return a value as it is written in a file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(key: str, entry: Entry, kind: type[Any]) -> Any:
    text = entry.text.strip()
    if kind is bool:
        if text not in ("true", "false"):
            raise ConfigError(key, text, f"{entry.place}must be true or false")
        return text == "true"
    if kind is int:
        most = 65535 if key == "listenPort" else 2**31 - 1
        if not text.isdecimal() or int(text) > most:
            raise ConfigError(key, text, f"{entry.place}must be a whole number from 0 to {most}")
        return int(text)
    return text


def _why_unused(key: str) -> str:
    for reason, patterns in UNUSED.items():
        if any(fnmatchcase(key, pattern) for pattern in patterns.split()):
            return f"has no effect: {reason}"
    return "is not a key of RocketMQ's name server"
