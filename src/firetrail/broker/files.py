"""The JSON files in a store's ``config`` folder, read and written as RocketMQ does.

The file before the last change stays beside it as ``.bak``, and is read if the file itself is
missing or cannot be understood. A crash at any moment leaves the one or the other content: the
file has its name all the time, and so neither depends on which of two names a disk loses first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firetrail.errors import FormatError, StoreError
from firetrail.format import config_json
from firetrail.format.names import CONFIG
from firetrail.storage.system import System

_log = logging.getLogger(__name__)


class ConfigFile:
    """One file, such as ``topics.json``. ``before`` is done before each write."""

    def __init__(
        self, system: System, root: Path, name: str, before: Callable[[], None] | None = None
    ) -> None:
        self._files = system.files
        self.path = root / CONFIG / name
        self._before = before
        self._backup = self.path.with_name(name + ".bak")
        self._is_good = False  # whether the file itself, if it is there, can be understood

    def load(self) -> dict[str, Any]:
        """What it holds, nothing if it was never written.

        StoreError if it was, and neither it nor the one before can be understood: to go on with
        nothing would lose every offset or topic in silence.
        """
        problems = []
        for path in (self.path, self._backup):
            try:
                content = self._files.read(path)
            except FileNotFoundError:
                continue
            try:
                value = config_json.loads(content)
                if not isinstance(value, dict):
                    raise FormatError("config JSON", 0, "is no object")
            except FormatError as error:
                problems.append(f"{path}: {error}")
                continue
            for problem in problems:
                _log.warning("%s; %s is used instead", problem, path.name)
            self._is_good = path is self.path
            return value
        if problems:
            raise StoreError(
                f"{'; '.join(problems)}; put a good copy back, or remove both to begin anew"
            )
        return {}

    def save(self, value: dict[str, Any]) -> None:
        """Write it, durably."""
        if self._before is not None:
            self._before()
        content = config_json.dumps(value).encode()
        self._files.make_folder(self.path.parent)
        if self._is_good:
            self._files.replace(self._backup, self._files.read(self.path))
        self._files.replace(self.path, content)
        self._is_good = True
