"""Settings that administrators read and change while the broker runs.

A change takes effect at once, and is written to the ``broker.conf`` that the broker was started
with. The other lines of that file stay as they are. Without such a file, the change lasts until the
broker stops.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from firetrail.broker import broker_config
from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.broker_state import BrokerState
from firetrail.errors import ConfigError, RequestError
from firetrail.format.files.java_properties import Entry, parse_properties, update_properties
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.admin.admin_headers import VersionResponse
from firetrail.remoting.messages.bodies import DataVersion
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.conf_file import NO_KEY, read_settings, why_unused
from firetrail.settings.file_changes import ConfEntries, FileChanges, changes_between
from firetrail.settings.settings_table import Setting
from firetrail.store.settings import live_config as store_changing
from firetrail.store.settings import store_config
from firetrail.text import did_you_mean

_TABLES = (broker_config.SETTINGS, store_config.SETTINGS)
_KNOWN: Mapping[str, Setting] = {
    name: setting
    for settings in _TABLES
    for setting in settings.values()
    for name in setting.names_in_file
}
CHANGEABLE = sorted(
    setting.key for settings in _TABLES for setting in settings.values() if setting.live
)
"""The settings that can be changed, by their keys in ``broker.conf``."""

_log = logging.getLogger(__name__)


class Changes(NamedTuple):
    """The checked settings after a change."""

    broker: BrokerConfig
    of_store: dict[str, Any]


class ConfigProcessor:
    """Handles GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG."""

    def __init__(self, state: BrokerState, conf: Path | None) -> None:
        """``conf`` is the file that changes are written to, None to keep them in memory."""
        self._system = state.system
        self._store = state.store
        self._live = state.live
        self._state = state
        self._conf = conf
        self._version = DataVersion()
        self._lock = asyncio.Lock()  # one change at a time
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_BROKER_CONFIG: self._settings,
            RequestCode.UPDATE_BROKER_CONFIG: self._change,
        }

    def _settings(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return all settings under their keys in ``broker.conf``, one per line."""
        lines = []
        for settings, values in zip(_TABLES, (self._live.current, self._store.config), strict=True):
            for setting in settings.values():
                value = getattr(values, setting.name)
                if setting.name == "store_host":
                    lines += [f"brokerIP1={value.ip}", f"listenPort={value.port}"]
                else:
                    lines.append(f"{setting.key}={setting.written(value)}")
        version = self._version.encode(standard=True).decode()
        return request.answer(
            fields=VersionResponse(version).encode(), body="\n".join(lines).encode()
        )

    async def _change(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        try:
            entries = parse_properties(request.content.decode("utf-8", "replace"))
            async with self._lock:
                changes = self._checked(entries)
                if self._conf is not None:
                    await asyncio.to_thread(self._save, self._conf, entries)
                take(self._state, changes)
                now_ms = self._system.clock.now_ms()
                self._version = DataVersion(self._version.counter + 1, now_ms)
        except ConfigError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"no setting was changed, because {self._conf} cannot be written: {error}",
            ) from None
        _log.warning("%s has changed settings: %s", connection.peer, ", ".join(entries))
        return request.answer()

    def _checked(self, entries: Mapping[str, Entry]) -> Changes:
        """Return the changes; raise RequestError or ConfigError if one of them is not allowed."""
        for key in entries:
            _check_key(key)
        of_broker, of_store = (
            read_settings(
                settings, {k: v for k, v in entries.items() if _KNOWN[k].name in settings}
            ).values
            for settings in _TABLES
        )
        store_changing.check_changes(self._store.config, of_store)
        return Changes(self._live.current.replace(**of_broker), of_store)

    def _save(self, conf: Path, entries: Mapping[str, Entry]) -> None:
        files = self._system.files
        text = files.read(conf).decode("utf-8", "surrogateescape")
        values = {key: entry.text for key, entry in entries.items()}
        others = {name for key in entries for name in _KNOWN[key].names_in_file} - set(values)
        changed = update_properties(text, values, others)
        files.replace(conf, changed.encode("utf-8", "surrogateescape"))


def take(state: BrokerState, changes: Changes) -> None:
    """Put changes into effect."""
    state.store.configure(**changes.of_store)
    if changes.broker.log_level is not state.live.current.log_level:
        changes.broker.log_level.apply()
    state.live.current = changes.broker
    state.topics.reconfigured()


def take_file(state: BrokerState, before: ConfEntries, now: ConfEntries) -> FileChanges:
    """Put the live settings into effect that differ between two versions of ``broker.conf``.

    Args:
        state: The state of the broker.
        before: The file with which the broker was started.
        now: The file as it is.

    Returns: The changed settings, and those that need a restart.

    Raises:
        ConfigError: A setting in the file is not allowed; none takes effect.
    """
    load_entries(now)
    broker, store = (changes_between(before, now, settings) for settings in _TABLES)
    store_changing.check_changes(state.store.config, store.live)
    take(state, Changes(state.live.current.replace(**broker.live), store.live))
    return FileChanges(broker.live | store.live, broker.restart + store.restart)


def _check_key(key: str) -> None:
    setting = _KNOWN.get(key)
    if setting is not None and setting.live:
        return
    if setting is not None or why_unused(key):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"{key} cannot be changed while the broker runs: change broker.conf and restart it. "
            f"These can be changed without a restart: {', '.join(CHANGEABLE)}",
        )
    raise RequestError(
        ResponseCode.INVALID_PARAMETER, f"{key:.100} {NO_KEY}{did_you_mean(key, _KNOWN)}"
    )
