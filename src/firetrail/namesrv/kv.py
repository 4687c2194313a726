"""Settings that a name server keeps for others, by namespace and key; in a file if it has one.

The file is RocketMQ's ``kvConfig.json``: ``{"configTable":{"<namespace>":{"<key>":"<value>"}}}``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from firetrail.errors import ConfigError, FiretrailError
from firetrail.format import config_json
from firetrail.remoting.body import Body

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""The namespace with the order of brokers for topics whose messages are in order everywhere."""


@dataclass(frozen=True, slots=True)
class _KVFile(Body):
    """The content of the file."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KVConfig:
    """Namespaces with keys and values. Every change is in the file before it is acknowledged."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        if path is not None and path.exists():
            try:
                loaded = _KVFile.from_json(config_json.loads(path.read_bytes()))
            except FiretrailError as error:
                remedy = "repair or remove the file"
                raise ConfigError("kvConfigPath", str(path), f"{error}; {remedy}") from None
            self._table = loaded.config_table

    def get(self, namespace: str, key: str) -> str | None:
        """The value; None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace; None if there is none."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self._table.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it is there."""
        self._table.get(namespace, {}).pop(key, None)
        self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(self._path.name + ".tmp")
        with beside.open("w", encoding="utf-8") as file:
            file.write(config_json.dumps(_KVFile(self._table).to_json()))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
