"""The settings of a name server, by their keys in RocketMQ's ``namesrv.conf``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Self

from firetrail.errors import ConfigError
from firetrail.format.java_properties import Entry

UNUSED: Mapping[str, str] = {
    "the place of files is given by kvConfigPath": "rocketmqHome configStorePath",
    "it tunes threads or buffers that only the Java name server has": """
        *ThreadPoolNums *ThreadPoolQueueCapacity server* client* useEpollNativeSelector
        writeBuffer*WaterMark unRegisterBrokerQueueCapacity shutdownWaitTimeSeconds
        enableShutdownGracefully
        """,
    "controllers and acting masters are not supported": """
        enableControllerInNamesrv supportActingMaster notifyMinBrokerIdChanged *ontroller*
        """,
    "the name server has one way of doing this, with nothing to set": """
        productEnvName clusterTest needWaitForService waitSecondsForService enableTopicList
        deleteTopicWithBrokerRegistration configBlackList useTLS
        """,
}
"""Why keys of RocketMQ 4.9 and 5.x have no effect here: the reason, and patterns of the keys."""


def _key(name: str, doc: str, *, changeable: bool = False) -> dict[str, Any]:
    return {"key": name, "doc": doc, "changeable": changeable}


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """What can be set. Some of it can be changed while the name server runs."""

    bind_address: str = field(
        default="127.0.0.1",
        metadata=_key(
            "bindAddress", "Address to listen on; RocketMQ listens on all of the machine's."
        ),
    )
    listen_port: int = field(
        default=9876, metadata=_key("listenPort", "Port to listen on, 0 for a free one.")
    )
    kv_config_path: str = field(
        default="",
        metadata=_key(
            "kvConfigPath",
            "File of the settings kept for others; without one they end with the process.",
        ),
    )
    scan_interval_ms: int = field(
        default=5000,
        metadata=_key(
            "scanNotActiveBrokerInterval",
            "Pause (ms) between two looks for brokers that are gone.",
        ),
    )
    order_message_enable: bool = field(
        default=False,
        metadata=_key(
            "orderMessageEnable",
            "Tell clients the order of brokers of the topics that have one.",
            changeable=True,
        ),
    )
    return_order_topics: bool = field(
        default=True,
        metadata=_key(
            "returnOrderTopicConfigToBroker", "Tell it to brokers as well.", changeable=True
        ),
    )
    all_topic_list: bool = field(
        default=True,
        metadata=_key(
            "enableAllTopicList", "Answer who asks for the names of all topics.", changeable=True
        ),
    )

    @classmethod
    def from_entries(cls, entries: Mapping[str, Entry]) -> tuple[Self, list[str]]:
        """The settings in a file, and remarks about keys that have no effect."""
        remarks = [
            f"{entry.place}{key} {_why_unused(key)}"
            for key, entry in entries.items()
            if key not in KEYS
        ]
        known = {KEYS[key]: entry for key, entry in entries.items() if key in KEYS}
        return cls()._with(known), remarks

    def changed(self, entries: Mapping[str, Entry]) -> Self:
        """With the changes that a request asks for; ConfigError if it may not."""
        changes = {}
        for key, entry in entries.items():
            if key not in CHANGEABLE:
                allowed = ", ".join(CHANGEABLE)
                raise ConfigError(key, entry.text, f"only {allowed} can be changed by request")
            changes[KEYS[key]] = entry
        return self._with(changes)

    def to_properties(self) -> str:
        """As a file with every key."""
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
    """A value as a file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(key: str, entry: Entry, kind: type[Any]) -> Any:
    text = entry.text.strip()
    if kind is bool:
        if text not in ("true", "false"):
            raise ConfigError(key, text, f"{entry.place}must be true or false")
        return text == "true"
    if kind is int:
        if not text.isdecimal() or int(text) > (65535 if key == "listenPort" else 2**31 - 1):
            raise ConfigError(key, text, f"{entry.place}must be a whole number in its range")
        return int(text)
    return text


def _why_unused(key: str) -> str:
    for reason, patterns in UNUSED.items():
        if any(fnmatchcase(key, pattern) for pattern in patterns.split()):
            return f"has no effect: {reason}"
    return "is not a key of RocketMQ's name server"
