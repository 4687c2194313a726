"""The parts of an open store that those around them share."""

from dataclasses import dataclass
from pathlib import Path

from firetrail.settings.settings_table import Live
from firetrail.store.index.index import Index
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.queues.queue_table import QueueTable
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import System


@dataclass(frozen=True, slots=True)
class StoreParts:
    """Log, queues and index of an open store, with its folder and settings."""

    system: System
    root: Path
    """The folder of the store, as an absolute path."""
    live: Live[StoreConfig]
    log: CommitLog
    queues: QueueTable
    index: Index | None
    """None if the settings disable it."""
