"""How far a consumer that broadcasts is: in a file of its own, as the Java client keeps it.

``<folder>/<client>/<group>/offsets.json``, and the one before as ``offsets.json.bak``, which is
read if the other cannot be. The form is RocketMQ's: a consumer in Java can go on with the file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from firetrail.errors import ConfigError, FormatError, ProtocolError, WrongTypeError
from firetrail.format import config_json
from firetrail.format.arguments import text
from firetrail.format.names import is_folder_name
from firetrail.remoting.bodies import MessageQueue
from firetrail.remoting.body import Body
from firetrail.system import Files

FOLDER = ".rocketmq_offsets"
"""Below the home folder, unless another is given."""
INSTANCE = "DEFAULT"
"""The Java client's name for the only consumer of a group on a machine."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Table(Body):
    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class LocalOffsets:
    """The offsets of one consumer. Two that share a file would not notice each other."""

    def __init__(self, folder: Path, client: str, group: str, files: Files | None = None) -> None:
        self._files = files or Files()
        self.path = folder / client / group / "offsets.json"
        self._backup = self.path.with_name(self.path.name + ".bak")
        self._saved: dict[MessageQueue, int] = {}
        self._saving: set[asyncio.Future[None]] = set()
        self._writing = asyncio.Lock()  # two may save at once: from time to time, and at the end

    async def load(self) -> None:
        """Read the file; one that was never written holds nothing."""
        self._saved = await asyncio.to_thread(self._load)

    def get(self, queue: MessageQueue) -> int | None:
        """The offset of a queue, as it was read or saved last; None if there is none."""
        return self._saved.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these, and those of other queues that were there; even if this is cancelled."""
        saving = asyncio.ensure_future(self._save(offsets))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await asyncio.shield(saving)

    async def _save(self, offsets: Mapping[MessageQueue, int]) -> None:
        async with self._writing:
            changed = self._saved | dict(offsets)
            if changed != self._saved:
                await asyncio.to_thread(self._write, changed)
                self._saved = changed

    def _load(self) -> dict[MessageQueue, int]:
        for path in (self.path, self._backup):
            try:
                return _Table.from_json(config_json.loads(self._files.read(path))).offset_table
            except FileNotFoundError:
                continue
            except (FormatError, ProtocolError) as error:
                _log.warning("%s: not read: %s", path, error)
        return {}

    def _write(self, offsets: dict[MessageQueue, int]) -> None:
        """Replace the file; it has its name at all times, whenever a crash comes."""
        self._files.make_folder(self.path.parent)
        if self.path.exists():
            self._files.replace(self._backup, self._files.read(self.path))
        self._files.replace(self.path, config_json.dumps(_Table(offsets).to_json()).encode())


class Place:
    """Where a consumer keeps its offsets, as its user says. ConfigError if that cannot be."""

    def __init__(self, folder: Path | None, instance: str) -> None:
        if folder is not None and not isinstance(folder, Path):
            raise WrongTypeError("offsets_folder", folder, "expected a Path")
        if not is_folder_name(text("instance", instance)):
            raise ConfigError("instance", instance, "cannot be part of the name of a folder")
        self._folder = folder
        self._instance = instance

    async def open(self, client_id: str, group: str) -> LocalOffsets:
        """The offsets of a group there."""
        ip = client_id.partition("@")[0]
        folder = self._folder or Path.home() / FOLDER
        found = LocalOffsets(folder, f"{ip}@{self._instance}", group)
        await found.load()
        return found
