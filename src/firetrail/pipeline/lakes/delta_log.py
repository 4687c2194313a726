"""The log of a Delta table in a local folder, whose commits delta-rs does not sync.

A commit is a file with the number of its version; at times a checkpoint has the same number. A
power failure can leave them empty or cut, or remove them, until they are synced. So a job publishes
what it has committed only after :func:`sync_delta_commits`.
"""

import re
from pathlib import Path

from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.system import SYSTEM

DELTA_LOG = "_delta_log"
_VERSION = re.compile(r"(\d{20})\.")
_LAST_CHECKPOINT = "_last_checkpoint"


def sync_delta_commits(folder: LakeFolder, since: int, to: int) -> None:
    """Make commits to a table durable. In an object store, they are.

    Args:
        folder: The folder of the table.
        since: The version before the first one; -1 for all.
        to: The last version.
    """
    if not folder.is_local:
        return
    log = Path(folder.path(DELTA_LOG))
    for name in SYSTEM.files.names(log):
        version = _VERSION.match(name)
        if name == _LAST_CHECKPOINT or (version is not None and since < int(version[1]) <= to):
            _sync_file(log / name)
    for place in (log, log.parent, log.parent.parent):
        SYSTEM.files.sync_folder(place)


def _sync_file(path: Path) -> None:
    descriptor = SYSTEM.files.open(path, writable=False)
    try:
        SYSTEM.files.sync(descriptor)
    finally:
        SYSTEM.files.close(descriptor)
