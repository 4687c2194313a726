"""Changes in a file of settings since a server was started with it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from firetrail.format.files.java_properties import Entry
from firetrail.settings.conf_file import read_settings
from firetrail.settings.settings_table import Setting

ConfEntries = Mapping[str, Entry]


class FileChanges(NamedTuple):
    """The settings whose text in the file is another one."""

    live: dict[str, Any]
    """The new values of settings that take effect at run time, by their names; a setting that is
    no longer in the file has its default."""
    restart: list[str]
    """The keys of settings that need a restart of the server."""

    def __str__(self) -> str:
        parts = []
        if self.live:
            parts.append(f"in effect now: {', '.join(sorted(self.live))}")
        if self.restart:
            parts.append(f"these changes need a restart: {', '.join(self.restart)}")
        return "; ".join(parts)


def changes_between(
    before: ConfEntries, now: ConfEntries, settings: Mapping[str, Setting]
) -> FileChanges:
    """Compare two versions of a file.

    Args:
        before: The file with which the server was started.
        now: The file as it is.
        settings: The table of settings; other keys of the file are not compared.

    Raises:
        ConfigError: A value is not allowed.
    """
    known = {name: setting for setting in settings.values() for name in setting.names_in_file}
    changed = {
        key: known[key]
        for key in sorted(known.keys() & (before.keys() | now.keys()))
        if _text(before, key) != _text(now, key)
    }
    values = read_settings(settings, {key: now[key] for key in known.keys() & now.keys()}).values
    live = {
        setting.name: values.get(setting.name, setting.default)
        for setting in changed.values()
        if setting.live
    }
    return FileChanges(live, [key for key, setting in changed.items() if not setting.live])


def _text(entries: ConfEntries, key: str) -> str | None:
    return entries[key].text.strip() if key in entries else None
