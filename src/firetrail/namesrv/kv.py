"""The key-value store of a name server: values by namespace and key, optionally in a file.

The file is RocketMQ's ``kvConfig.json``: ``{"configTable":{"<namespace>":{"<key>":"<value>"}}}``.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from firetrail.errors import ConfigError, FiretrailError, RequestError
from firetrail.format.files import config_json
from firetrail.remoting.messages.typed_body import Body
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.system import System

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""The namespace with the order of brokers of topics that are ordered across brokers."""
VALUE_MAX = 16 << 10
"""Maximum length of a value with its key and namespace."""
VALUES_MAX = 10_000
"""Maximum number of values in all namespaces. Every change writes all of them to the file."""


@dataclass(frozen=True, slots=True)
class _KVFile(Body):
    """The content of the file."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KVConfig:
    """Namespaces with keys and values.

    Every change is durable in the file before it is acknowledged or visible to readers.

    Args:
        path: The file; None keeps the values in memory only.
        system: Files to use.

    Raises:
        ConfigError: The file exists and cannot be read.
    """

    def __init__(self, path: Path | None, system: System) -> None:
        self._path = path
        self._files = system.files
        self._table: dict[str, dict[str, str]] = {}
        self._changing = asyncio.Lock()
        if path is not None and path.exists():
            try:
                loaded = _KVFile.from_json(config_json.loads(self._files.read(path)))
            except FiretrailError as error:
                remedy = "repair or remove the file"
                raise ConfigError("kvConfigPath", str(path), f"{error}; {remedy}") from None
            self._table = loaded.config_table

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value; None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace; None if there is none."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; raise RequestError if it is too long, or if there are too many values."""
        async with self._changing:
            self._check_room(namespace, key, value)
            await self._save(self._with(namespace, self._table.get(namespace, {}) | {key: value}))

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value if it exists."""
        async with self._changing:
            if self.get(namespace, key) is not None:
                rest = {k: v for k, v in self._table[namespace].items() if k != key}
                await self._save(self._with(namespace, rest))

    def _check_room(self, namespace: str, key: str, value: str) -> None:
        size = len(namespace) + len(key) + len(value)
        if size > VALUE_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"a key and value of {size} characters; at most {VALUE_MAX} are allowed",
            )
        count = sum(map(len, self._table.values()))
        if count >= VALUES_MAX and self.get(namespace, key) is None:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"there are {count} values, which is the limit of a name server; delete unused "
                f"ones before {key:.255} is set",
            )

    def _with(self, namespace: str, values: dict[str, str]) -> dict[str, dict[str, str]]:
        return self._table | {namespace: values}

    async def _save(self, table: dict[str, dict[str, str]]) -> None:
        """Write the file in a thread, so that the event loop is not blocked."""
        if self._path is not None:
            await asyncio.to_thread(self._write, self._path, table)
        self._table = table

    def _write(self, path: Path, table: dict[str, dict[str, str]]) -> None:
        content = config_json.dumps(_KVFile(table).to_json()).encode()
        self._files.make_folder(path.parent)
        self._files.replace(path, content)
