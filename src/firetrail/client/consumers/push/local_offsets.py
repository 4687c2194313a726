"""The offsets of a broadcast consumer, in a local file, as in the Java client.

The file is ``<folder>/<client>/<group>/offsets.json``. Its previous version is kept as
``offsets.json.bak``, which is read if the file cannot be. The format is RocketMQ's, so a Java
consumer can continue with the file.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from firetrail.errors import ConfigError, FormatError, ProtocolError, WrongTypeError
from firetrail.format.files import config_json
from firetrail.format.names import is_folder_name
from firetrail.format.values.arguments import text
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.messages.typed_body import Body
from firetrail.system import SYSTEM, Files

FOLDER = ".rocketmq_offsets"
"""The default folder, below the home folder, as in the Java client."""
INSTANCE = "DEFAULT"
"""The default name of a consumer, as in the Java client."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _LocalOffsetBody(Body):
    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class LocalOffsets:
    """The offsets of one consumer. Consumers that share a file overwrite each other's offsets."""

    def __init__(self, folder: Path, client: str, group: str, files: Files | None = None) -> None:
        self._files = files or SYSTEM.files
        self.path = folder / client / group / "offsets.json"
        self._backup = self.path.with_name(self.path.name + ".bak")
        self._saved: dict[MessageQueue, int] = {}
        self._saving: set[asyncio.Future[None]] = set()
        self._writing = asyncio.Lock()  # the periodic commit and the close may save concurrently

    async def load(self) -> None:
        """Read the file; without a file there are no offsets."""
        self._saved = await asyncio.to_thread(self._load)

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue, as last read or saved; None if there is none."""
        return self._saved.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Save these offsets and keep those of other queues, even if this is cancelled."""
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
                return _LocalOffsetBody.from_json(
                    config_json.loads(self._files.read(path))
                ).offset_table
            except FileNotFoundError:
                continue
            except (FormatError, ProtocolError) as error:
                _log.warning("%s cannot be read and is ignored: %s", path, error)
        return {}

    def _write(self, offsets: dict[MessageQueue, int]) -> None:
        """Replace the file atomically, so that it exists even after a crash."""
        self._files.make_folder(self.path.parent)
        if self.path.exists():
            self._files.replace(self._backup, self._files.read(self.path))
        self._files.replace(
            self.path, config_json.dumps(_LocalOffsetBody(offsets).to_json()).encode()
        )


class Place:
    """The location of a consumer's offsets; raises ConfigError if the arguments are invalid."""

    def __init__(self, folder: Path | None, instance: str) -> None:
        if folder is not None and not isinstance(folder, Path):
            raise WrongTypeError("offsets_folder", folder, "expected a Path")
        if not is_folder_name(text("instance", instance)):
            raise ConfigError("instance", instance, "must be usable as the name of a folder")
        self._folder = folder
        self._instance = instance

    async def open(self, client_id: str, group: str) -> LocalOffsets:
        """Load and return the offsets of a group."""
        ip = client_id.partition("@")[0]
        folder = self._folder or Path.home() / FOLDER
        found = LocalOffsets(folder, f"{ip}@{self._instance}", group)
        await found.load()
        return found
