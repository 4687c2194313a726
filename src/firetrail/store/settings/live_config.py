"""Settings of a store that can be changed while it is open."""

from collections.abc import Mapping
from typing import Any

from firetrail.errors import ConfigError
from firetrail.store.settings.store_config import SETTINGS, StoreConfig


def check_changes(config: StoreConfig, changes: Mapping[str, Any]) -> StoreConfig:
    """Return the changed settings; raise ConfigError for changes that need a closed store."""
    for name, value in changes.items():
        if name in SETTINGS and not SETTINGS[name].live:
            raise ConfigError(name, value, "cannot be changed while the store is open")
    changed = config.replace(**changes)
    if config.write_buffer_pool and changed.max_record_size > config.max_record_size:
        raise ConfigError(
            "max_message_size",
            changed.max_message_size,
            f"at most {config.max_message_size}, the size of the write buffers; reopen the store",
        )
    return changed
